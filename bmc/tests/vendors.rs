//! Shapes of answers as Dell, HPE, Supermicro and Lenovo send them, in our own words and only as far as they matter here:
//! which reset and which boot setting each is sent.

#![allow(clippy::unwrap_used, reason = "what cannot be made here is a failed test")]

mod service;

use bedplate_bmc::{Bmc, BmcFault, BootSource, Performed, PowerRequest, probe};
use serde_json::{Value, json};
use service::{RESET, Reply, SYSTEM, Service, error_reply};

/// A service of one system with these fields of the root and of the system on top.
async fn service(root: Value, system: Value) -> Service {
    let service = Service::start().await;
    {
        let mut state = service.state();
        for (path, fields) in [("/redfish/v1/", root), (SYSTEM, system)] {
            let resource = state.resources.get_mut(path).unwrap().as_object_mut().unwrap();
            resource.extend(fields.as_object().unwrap().clone());
        }
    }
    service
}

fn resets(types: &[&str]) -> Value {
    json!({"#ComputerSystem.Reset": {"target": RESET, "ResetType@Redfish.AllowableValues": types}})
}

/// Bodies that were sent by PATCH, with where to and under which ETag.
fn patches(service: &Service) -> Vec<(String, Option<String>, Value)> {
    let state = service.state();
    let all = state.seen.iter().filter(|seen| seen.method == "PATCH");
    all.map(|seen| (seen.path.clone(), seen.if_match.clone(), seen.body["Boot"].clone())).collect()
}

fn once(target: &str) -> Value {
    json!({"BootSourceOverrideEnabled": "Once", "BootSourceOverrideTarget": target})
}

#[tokio::test]
async fn idrac_gets_boot_settings_in_the_settings_resource_if_present() {
    let settings = format!("{SYSTEM}/Settings");
    let system = json!({
        "Manufacturer": "Dell Inc.", "Model": "PowerEdge R470", "SKU": "ABC1234", "SerialNumber": "CN7016",
        "@Redfish.Settings": {"SettingsObject": {"@odata.id": settings}},
        "LastResetTime": "0000-00-00T00:00:00+00:00", "UUID": "",
        "Actions": resets(&["On", "ForceOff", "ForceRestart", "GracefulRestart", "GracefulShutdown", "PushPowerButton", "Nmi", "PowerCycle"]),
    });
    let service = service(
        json!({"Vendor": "Dell", "Product": "Integrated Dell Remote Access Controller", "Oem": {"Dell": {}}}),
        system,
    )
    .await;
    service
        .set(&settings, json!({"@odata.etag": "W/\"gen-1\"", "Boot": {"BootSourceOverrideTarget": "None"}}));
    let mut bmc = service.client();
    // A time and a UUID that are none do no harm.
    let identity = bmc.identity().await.unwrap();
    assert_eq!((identity.vendor.as_deref(), identity.host_uuid), (Some("Dell Inc."), None));
    bmc.set_next_boot(BootSource::Pxe, None).await.unwrap();
    assert_eq!(patches(&service), [(settings.clone(), Some("W/\"gen-1\"".to_owned()), once("Pxe"))]);
    assert_eq!(bmc.next_boot().await.unwrap(), Some(BootSource::Pxe));
    assert_eq!(bmc.power(PowerRequest::GracefulOff).await.unwrap(), Performed("GracefulShutdown"));
    // Older ones have settings, but not for the boot source.
    service.set(&settings, json!({"Id": "Settings"}));
    bmc.set_next_boot(BootSource::Http, None).await.unwrap();
    assert_eq!(patches(&service)[1].0, SYSTEM);
}

#[tokio::test]
async fn ilo_is_shut_down_by_its_power_button_and_only_while_it_is_on() {
    let system = json!({
        "Manufacturer": "HPE", "Model": "ProLiant DL360 Gen10", "PowerState": "On",
        "Actions": resets(&["On", "ForceOff", "ForceRestart", "Nmi", "PushPowerButton"]),
    });
    let service =
        service(json!({"Vendor": "HPE", "Oem": {"Hpe": {"Manager": [{"ManagerType": "iLO 5"}]}}}), system)
            .await;
    // The mode cannot be written there: a request with it would be refused.
    service.hook(|seen, _| {
        let refused = seen.method == "PATCH" && seen.body["Boot"].get("BootSourceOverrideMode").is_some();
        refused.then(|| error_reply(400, "iLO.2.14.PropertyNotWritable", "Not writable."))
    });
    let mut bmc = service.client();
    bmc.set_next_boot(BootSource::Http, None).await.unwrap();
    assert_eq!(patches(&service)[0].2, once("UefiHttp"));
    assert_eq!(bmc.power(PowerRequest::GracefulOff).await.unwrap(), Performed("PushPowerButton"));
    bmc.power(PowerRequest::ForceOff).await.unwrap();
    assert_eq!(bmc.power(PowerRequest::GracefulOff).await.unwrap_err().reason(), BmcFault::NotSupported);
    assert_eq!(bmc.power(PowerRequest::Cycle).await.unwrap(), Performed("ForceRestart"));
    let found = probe::redfish(&mut bmc).await.unwrap();
    assert_eq!(found.quirks[0].name, "power-button-is-graceful");
    let quirk = serde_json::to_value(&found).unwrap()["quirks"][0].clone();
    assert!(quirk["name"] == "power-button-is-graceful" && quirk["seenOn"].is_string(), "{quirk}");
}

#[tokio::test]
async fn supermicro_gets_the_mode_again_and_accepts_without_a_task() {
    let system = json!({
        "Manufacturer": "Supermicro", "Model": "SYS-1029P", "PowerState": "Off",
        "Actions": resets(&["On", "ForceOff", "GracefulShutdown", "GracefulRestart", "ForceRestart", "Nmi", "ForceOn"]),
    });
    let service = service(json!({"Vendor": "Supermicro", "Oem": {"Supermicro": {}}}), system).await;
    service.hook(|seen, _| (seen.method == "PATCH").then(|| Reply::Is(202, vec![], String::new())));
    let mut bmc = service.client();
    bmc.set_next_boot(BootSource::Pxe, None).await.unwrap();
    let mut expected = once("Pxe");
    expected["BootSourceOverrideMode"] = json!("UEFI");
    assert_eq!(patches(&service), [(SYSTEM.to_owned(), None, expected)]);
    assert_eq!(bmc.power(PowerRequest::On).await.unwrap(), Performed("On"));
}

#[tokio::test]
async fn xcc_checks_etags_and_ami_firmware_of_amd_machines_requires_one() {
    let lenovo = json!({"Manufacturer": "Lenovo", "Model": "ThinkSystem SR650", "@odata.etag": "\"3a7\""});
    let xcc = service(json!({"Vendor": "Lenovo", "Oem": {"Lenovo": {}}}), lenovo).await;
    xcc.state().etags.insert(SYSTEM.to_owned(), "\"3a7\"".to_owned());
    xcc.client().set_next_boot(BootSource::Pxe, None).await.unwrap();
    assert_eq!(patches(&xcc), [(SYSTEM.to_owned(), Some("\"3a7\"".to_owned()), once("Pxe"))]);

    let amd = json!({"Manufacturer": "Lenovo", "Model": "ThinkSystem SR655", "@odata.etag": "W/\"1654\""});
    let ami = service(json!({"Product": "AMI Redfish Server", "Oem": {"Ami": {}}}), amd).await;
    ami.hook(|seen, _| match (seen.method.as_str(), seen.if_match.as_deref()) {
        ("PATCH", Some("*")) => Some(Reply::Is(204, vec![], String::new())),
        ("PATCH", None) => Some(error_reply(428, "Ami.1.0.PreconditionHeaderMissing", "No If-Match.")),
        ("PATCH", Some(_)) => Some(error_reply(412, "Ami.1.0.PreconditionFailed", "Failed.")),
        _ => None,
    });
    ami.client().set_next_boot(BootSource::Pxe, None).await.unwrap();
    assert_eq!(patches(&ami).len(), 1);
}

#[tokio::test]
async fn service_that_requires_an_etag_without_sending_one_gets_any() {
    let service = service(json!({}), json!({})).await;
    service.hook(|seen, _| {
        let missing = seen.method == "PATCH" && seen.if_match.is_none();
        missing.then(|| error_reply(428, "Base.1.8.PreconditionRequired", "No If-Match."))
    });
    service.client().set_next_boot(BootSource::Pxe, None).await.unwrap();
    let sent: Vec<Option<String>> = patches(&service).into_iter().map(|(_, tag, _)| tag).collect();
    assert_eq!(sent, [None, Some("*".to_owned())]);
}
