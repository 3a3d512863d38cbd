//! Written fields of an operation, and the meaning of each refusal.

use bedplate_api::operation::{OperationCounts, OperationState};

use super::*;
use crate::plane::fake::{Answers, fake};

fn operation() -> MachineOperation {
    let object = json!({ "metadata": { "name": "x", "uid": "u", "resourceVersion": "7" },
        "spec": { "operationName": "reboot", "machineRef": { "name": "node-1" } } });
    serde_json::from_value(object).unwrap()
}

#[test]
fn only_the_executors_fields_are_written_over_the_version_read() {
    let status = MachineOperationStatus {
        state: Some(OperationState::InProgress),
        counts: Some(OperationCounts::default()),
        ..MachineOperationStatus::default()
    };
    let body = patch_body(&operation(), &status);
    assert_eq!(body["metadata"], json!({ "uid": "u", "resourceVersion": "7" }));
    assert_eq!(body["status"].get("counts"), None);
    assert_eq!(body["status"]["state"], "InProgress");
    assert!(body["status"]["reason"].is_null(), "what an earlier step said is taken away");
}

fn refusal(code: u16) -> (u16, Value) {
    (code, json!({ "kind": "Status", "status": "Failure", "reason": "R", "message": "m", "code": code }))
}

async fn written(answers: Answers) -> WriteOperationError {
    write(&fake(answers), &operation(), &MachineOperationStatus::default()).await.unwrap_err()
}

#[tokio::test]
async fn after_a_conflict_the_operation_is_read_again() {
    let object = |uid: &str| {
        let mut object = serde_json::to_value(operation()).unwrap();
        object["metadata"]["uid"] = uid.into();
        object["metadata"]["resourceVersion"] = "8".into();
        (200, object)
    };
    let WriteOperationError::Conflict(now) = written(vec![refusal(409), object("u")]).await else {
        panic!("no conflict");
    };
    assert_eq!(now.resource_version().as_deref(), Some("8"));
    assert!(matches!(written(vec![refusal(409), object("another")]).await, WriteOperationError::Gone));
    let gone = json!({ "status": "Failure", "reason": "NotFound", "code": 404,
        "details": { "name": "x", "group": "bedplate.dev", "kind": "machineoperations" } });
    assert!(matches!(written(vec![(404, gone.clone())]).await, WriteOperationError::Gone));
    assert!(matches!(written(vec![refusal(409), (404, gone)]).await, WriteOperationError::Gone));
    assert!(matches!(written(vec![refusal(404)]).await, WriteOperationError::Later(_)), "a proxy's 404");
}

#[tokio::test]
async fn temporary_errors_are_retried_and_permanent_ones_refused() {
    assert!(matches!(written(vec![refusal(422)]).await, WriteOperationError::Refused(_)));
    for code in [401, 403, 429, 500, 503] {
        assert!(matches!(written(vec![refusal(code)]).await, WriteOperationError::Later(_)), "{code}");
    }
}
