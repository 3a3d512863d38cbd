//! Override of the next boot: its present value, and the change that sets it once.
//!
//! `BootSourceOverrideMode` is not sent (HPE refuses it, and it is the firmware's setting), except where a quirk
//! requires it: the requested value, or the present one if none is requested. Some services (iDRAC 10) accept boot
//! settings only in the settings resource (`@Redfish.Settings`).
//!
//! Pure: no clock, no file, no socket. Callers: `redfish`, `probe`.

use serde_json::{Value, json};

use super::document::Document;
use crate::error::BmcError;
use crate::model::{BootMode, BootSource};
use crate::quirks::{Quirk, Quirks};

const TARGET: &str = "/Boot/BootSourceOverrideTarget";
const ALLOWED: &str = "/Boot/BootSourceOverrideTarget@Redfish.AllowableValues";
const MODE: &str = "/Boot/BootSourceOverrideMode";

/// The standard's word for a source.
pub(crate) const fn word(source: BootSource) -> &'static str {
    match source {
        BootSource::Pxe => "Pxe",
        BootSource::Http => "UefiHttp",
    }
}

/// The standard's word for a mode.
const fn mode_word(mode: BootMode) -> &'static str {
    match mode {
        BootMode::Legacy => "Legacy",
        BootMode::Uefi => "UEFI",
    }
}

/// Returns the present override of the next boot.
pub(crate) fn current(system: &Document) -> Result<Option<BootSource>, BmcError> {
    // Some services only know `Continuous` and forget it after a boot.
    let enabled = matches!(system.word("/Boot/BootSourceOverrideEnabled")?, Some("Once" | "Continuous"));
    Ok(match system.word(TARGET)? {
        Some("Pxe") if enabled => Some(BootSource::Pxe),
        Some("UefiHttp") if enabled => Some(BootSource::Http),
        _ => None,
    })
}

/// The settings resource of a system.
pub(crate) fn settings(system: &Document) -> Result<Option<String>, BmcError> {
    system.link("/@Redfish.Settings/SettingsObject")
}

/// Returns true if the boot source is set in a settings resource.
pub(crate) fn takes_boot(settings: &Document) -> bool {
    settings.value.pointer(TARGET).is_some()
}

/// Returns the sources that a system accepts. `None`: it does not report them, or its list is empty.
pub(crate) fn allowed(system: &Document) -> Option<Vec<String>> {
    system.words(ALLOWED).filter(|words| !words.is_empty())
}

/// The change that makes `source` the next boot's, once.
pub(crate) fn change(
    system: &Document,
    source: BootSource,
    mode: Option<BootMode>,
    quirks: &Quirks,
) -> Result<Value, BmcError> {
    let target = word(source);
    let not_supported =
        |hint: String| BmcError::NotSupported { what: format!("booting once from {target}"), hint };
    if (source, mode) == (BootSource::Http, Some(BootMode::Legacy)) {
        let hint = "BIOS does not support HTTP boot; set bmc.bootSource to PXE, or spec.pxe.firmware to UEFI";
        return Err(not_supported(hint.to_owned()));
    }
    if system.at("/Boot").is_none() {
        return Err(not_supported(format!(
            "{} has no boot settings; set the boot order in its firmware",
            system.path
        )));
    }
    if let Some(allowed) = allowed(system).filter(|all| !all.iter().any(|one| one == target)) {
        return Err(not_supported(format!("it supports {}", allowed.join(", "))));
    }
    let mut boot = json!({ "BootSourceOverrideEnabled": "Once", "BootSourceOverrideTarget": target });
    if quirks.have(Quirk::RepeatBootMode)
        && let Some(now) = system.word(MODE)?
    {
        boot["BootSourceOverrideMode"] = json!(match mode {
            Some(mode) => mode_word(mode),
            None => now,
        });
    }
    Ok(json!({ "Boot": boot }))
}

/// The ETag of a second attempt, after the first one's was refused (412) and the resource was read again.
pub(crate) fn second_etag(first: Option<&str>, now: Option<String>) -> Option<String> {
    match (first, now) {
        // The service does not take the one that it gives: weak ones are wanted strong, strong ones not at all.
        (Some(first), Some(now)) if first == now => now.strip_prefix("W/").map(str::to_owned),
        (_, now) => now,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn system(boot: &Value) -> Document {
        let body = json!({ "Boot": boot }).to_string();
        Document::parse("/redfish/v1/Systems/1", None, body.as_bytes()).unwrap()
    }

    #[test]
    fn an_override_counts_while_it_is_enabled() {
        for (enabled, target, expected) in [
            ("Once", "Pxe", Some(BootSource::Pxe)),
            ("Continuous", "UefiHttp", Some(BootSource::Http)),
            ("Disabled", "Pxe", None),
            ("Once", "Hdd", None),
        ] {
            let boot = json!({"BootSourceOverrideEnabled": enabled, "BootSourceOverrideTarget": target});
            assert_eq!(current(&system(&boot)).unwrap(), expected, "{enabled} {target}");
        }
        assert_eq!(current(&system(&Value::Null)).unwrap(), None);
    }

    #[test]
    fn the_mode_is_repeated_only_where_it_must_be() {
        let at = system(&json!({"BootSourceOverrideMode": "UEFI"}));
        let plain = change(&at, BootSource::Pxe, None, &Quirks::default()).unwrap();
        assert_eq!(
            plain,
            json!({"Boot": {"BootSourceOverrideEnabled": "Once", "BootSourceOverrideTarget": "Pxe"}})
        );
        let repeated = change(&at, BootSource::Pxe, None, &Quirks::of_all(&[Quirk::RepeatBootMode])).unwrap();
        assert_eq!(repeated["Boot"]["BootSourceOverrideMode"], "UEFI");
        let quirks = Quirks::of_all(&[Quirk::RepeatBootMode]);
        let asked = change(&at, BootSource::Pxe, Some(BootMode::Legacy), &quirks).unwrap();
        assert_eq!(asked["Boot"]["BootSourceOverrideMode"], "Legacy");
        let left = change(&at, BootSource::Pxe, Some(BootMode::Legacy), &Quirks::default()).unwrap();
        assert_eq!(left, plain);
    }

    #[test]
    fn bios_does_not_boot_by_http() {
        let at = system(&json!({"BootSourceOverrideMode": "Legacy"}));
        let error = change(&at, BootSource::Http, Some(BootMode::Legacy), &Quirks::default()).unwrap_err();
        assert!(error.to_string().contains("spec.pxe.firmware"), "{error}");
        assert!(change(&at, BootSource::Http, Some(BootMode::Uefi), &Quirks::default()).is_ok());
    }

    #[test]
    fn an_empty_list_of_sources_tells_nothing() {
        let at = system(&json!({"BootSourceOverrideTarget@Redfish.AllowableValues": []}));
        assert!(allowed(&at).is_none() && change(&at, BootSource::Pxe, None, &Quirks::default()).is_ok());
    }

    #[test]
    fn a_source_that_is_not_allowed_is_not_supported() {
        let at = system(&json!({"BootSourceOverrideTarget@Redfish.AllowableValues": ["None", "Pxe", "Hdd"]}));
        assert!(change(&at, BootSource::Pxe, None, &Quirks::default()).is_ok());
        let error = change(&at, BootSource::Http, None, &Quirks::default()).unwrap_err();
        assert_eq!(
            error.to_string(),
            "the BMC does not support booting once from UefiHttp; it supports None, Pxe, Hdd"
        );
        assert!(change(&system(&Value::Null), BootSource::Pxe, None, &Quirks::default()).is_err());
    }

    #[test]
    fn a_refused_etag_is_not_sent_again_as_it_was() {
        for (first, now, expected) in [
            (Some("\"1\""), Some("\"2\""), Some("\"2\"")),
            (Some("W/\"1\""), Some("W/\"1\""), Some("\"1\"")),
            (Some("\"1\""), Some("\"1\""), None),
            (None, Some("\"1\""), Some("\"1\"")),
            (Some("\"1\""), None, None),
        ] {
            assert_eq!(second_etag(first, now.map(str::to_owned)).as_deref(), expected, "{first:?} {now:?}");
        }
    }
}
