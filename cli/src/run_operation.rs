//! Runs `power` and `operation`: creates, shows and follows MachineOperations.

use bedplate_api::machine::Machine;
use bedplate_api::operation::MachineOperation;
use serde_json::Value;

use crate::arguments::{Global, OperationCommand, PowerAct, PowerCommand};
use crate::backend::ask;
use crate::desk::Desk;
use crate::error::{RunError, read};
use crate::output::{Page, Progress};
use crate::{follow_operation, operation, render};

/// Runs a power command.
pub(crate) async fn power(
    global: &Global,
    command: &PowerCommand,
    page: &mut Page<'_>,
) -> Result<(), RunError> {
    let desk = Desk::open(global).await?;
    if let PowerCommand::Status { name } = command {
        let machine = desk.machine(name).await?;
        if page.is_json() {
            return page.json(&machine);
        }
        let text = render::power(&read::<Machine>(&machine)?, page.look());
        return page.print(text);
    }
    let Some((wanted, act)) = operation::of_power(command) else { return Ok(()) };
    look_first(&desk, act).await?;
    let made = desk.create(&wanted).await?;
    if !act.wait {
        return made_one(global, &made, page);
    }
    let name = made.metadata.name.clone().unwrap_or_default();
    if !page.is_json() {
        Progress::new().note(&format!("MachineOperation {} created", render::clean(&name)));
    }
    let ended = follow_operation::to_the_end(&desk, &name, Some(operation::patience(&made))).await?;
    end(&ended, page)
}

/// Checks that a Machine exists before an operation is created for it. No executor might ever take that
/// operation. A user who may create operations but not read Machines passes.
async fn look_first(desk: &Desk, act: &PowerAct) -> Result<(), RunError> {
    match desk.machine(act.name.as_str()).await {
        Ok(machine) => {
            if machine["spec"]["paused"] == true {
                let note =
                    format!("Machine {} is paused; the operation waits until it is unpaused", act.name);
                Progress::new().note(&note);
            }
            Ok(())
        }
        Err(error) if error.is_forbidden() => Ok(()),
        Err(error) => Err(error),
    }
}

/// Prints the created operation, and the command that follows it.
fn made_one(global: &Global, made: &MachineOperation, page: &mut Page<'_>) -> Result<(), RunError> {
    if page.is_json() {
        return page.json(made);
    }
    let name = render::clean(made.metadata.name.as_deref().unwrap_or_default());
    let again = ask::again(global);
    page.print(format!(
        "MachineOperation {name} created; to follow it: bedplate operation watch {name}{again}\n"
    ))
}

/// Prints a finished operation. Returns an error if it has failed.
fn end(ended: &MachineOperation, page: &mut Page<'_>) -> Result<(), RunError> {
    if page.is_json() {
        page.json(ended)?;
    }
    if operation::ended(ended) == Some(false) {
        let status = ended.status.clone().unwrap_or_default();
        return Err(RunError::Failed {
            name: ended.metadata.name.clone().unwrap_or_default(),
            operation: ended.spec.operation_name.clone(),
            reason: status.reason.unwrap_or_else(|| "Failed".to_owned()),
            message: status.message.unwrap_or_default(),
        });
    }
    if !page.is_json() {
        let look = page.look();
        page.print(render::progress(ended, look) + "\n")?;
    }
    Ok(())
}

/// Runs an operation command.
pub(crate) async fn operations(
    global: &Global,
    command: &OperationCommand,
    page: &mut Page<'_>,
) -> Result<(), RunError> {
    let wanted = match command {
        OperationCommand::Create(arguments) => {
            Some(operation::of_create(arguments).map_err(RunError::Selector)?)
        }
        OperationCommand::List | OperationCommand::Watch { .. } => None,
    };
    let desk = Desk::open(global).await?;
    match (command, wanted) {
        (OperationCommand::Create(_), Some(wanted)) => {
            let made = desk.create(&wanted).await?;
            made_one(global, &made, page)
        }
        (OperationCommand::Watch { name: Some(name) }, _) => {
            let ended = follow_operation::to_the_end(&desk, name, None).await?;
            end(&ended, page)
        }
        (OperationCommand::Watch { name: None }, _) => follow_operation::all(&desk, page).await,
        (OperationCommand::List | OperationCommand::Create(_), _) => {
            let list: Value = desk.list().await?;
            if page.is_json() {
                return page.json(&list);
            }
            let text = render::operations(&read::<Vec<MachineOperation>>(&list["items"])?, page.look());
            page.print(text)
        }
    }
}

#[cfg(test)]
mod tests;
