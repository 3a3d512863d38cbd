//! The Redfish client against a service that forgets sessions, lies, redirects, hangs and changes its certificate: the
//! right error each time, the password seen once, nothing that changes sent twice.

#![allow(clippy::unwrap_used, reason = "what cannot be made here is a failed test")]

mod service;

use std::time::{Duration, Instant};

use bedplate_api::id::Digest;
use bedplate_api::machine::BmcProtocol;
use bedplate_bmc::address::{Address, Reach};
use bedplate_bmc::redfish::Redfish;
use bedplate_bmc::tls::Trust;
use bedplate_bmc::{
    Bmc, BmcError, BmcFault, BootSource, Credentials, Deadlines, HealthState, Performed, PowerRequest,
    PowerState, probe,
};
use serde_json::{Value, json};
use service::{
    PASSWORD, RESET, Reply, SESSIONS, SYSTEM, Service, basic, checked, error_reply, json_reply, quick,
};

#[tokio::test]
async fn a_session_is_made_once_used_for_everything_and_deleted() {
    let service = Service::start().await;
    let mut bmc = service.client();
    assert_eq!(bmc.power_state().await.unwrap(), PowerState::Off);
    assert_eq!(bmc.power(PowerRequest::On).await.unwrap(), Performed("On"));
    assert_eq!(bmc.power_state().await.unwrap(), PowerState::On);
    assert_eq!(bmc.power(PowerRequest::Cycle).await.unwrap(), Performed("PowerCycle"));
    assert_eq!(service.state().tokens, ["t1"]);
    bmc.close().await;
    let state = service.state();
    assert!(state.tokens.is_empty());
    assert_eq!((state.logins, state.count("POST", RESET)), (1, 2));
    // The token is what is shown, the password only to the login.
    assert!(state.seen.iter().all(|seen| seen.basic.is_none()));
}

#[tokio::test]
async fn a_client_at_rest_has_no_connection_and_goes_on_with_its_sessions() {
    let service = Service::start().await;
    let mut bmc = service.client();
    bmc.power_state().await.unwrap();
    {
        let state = service.state();
        assert_eq!((state.connections, state.open), (1, 1));
    }
    bmc.rest();
    let deadline = Instant::now() + Duration::from_secs(30);
    while service.state().open > 0 {
        assert!(Instant::now() < deadline, "the connection stays open");
        tokio::task::yield_now().await;
    }
    assert_eq!(bmc.power_state().await.unwrap(), PowerState::Off);
    assert_eq!(bmc.power(PowerRequest::On).await.unwrap(), Performed("On"));
    let state = service.state();
    assert_eq!((state.logins, state.tokens.len()), (1, 1));
    assert_eq!((state.connections, state.resumed, state.open), (2, 1, 1));
    assert!(bmc.certificate().verified);
}

#[tokio::test]
async fn inventory_health_and_log_are_read() {
    let service = Service::start().await;
    let mut bmc = service.client();
    let identity = bmc.identity().await.unwrap();
    assert_eq!(identity.vendor.as_deref(), Some("Contoso"));
    assert_eq!((identity.firmware.as_deref(), identity.controller.as_deref()), (Some("2.1"), Some("BMC-1")));
    assert_eq!(bmc.health().await.unwrap().overall, HealthState::Ok);
    let log = bmc.log_tail(1).await.unwrap();
    assert_eq!((log.len(), log[0].message.as_str()), (1, "Fan 1 failed."));
    assert_eq!(log[0].severity, HealthState::Critical);
    let error = bmc.console().await.err().unwrap();
    assert_eq!(error.reason(), BmcFault::NotSupported);
}

#[tokio::test]
async fn an_expired_session_is_replaced_once_and_unseen() {
    let service = Service::start().await;
    let mut bmc = service.client();
    bmc.power_state().await.unwrap();
    service.state().tokens.clear();
    // Also for what changes: a 401 was not done.
    bmc.power(PowerRequest::On).await.unwrap();
    service.state().tokens.clear();
    bmc.power(PowerRequest::ForceOff).await.unwrap();
    assert_eq!(service.state().logins, 3);
    // A service that takes no session that it has just made is not asked for ever.
    service.hook(|seen, _| {
        (seen.path == SYSTEM).then(|| error_reply(401, "Base.1.8.NoValidSession", "No valid session."))
    });
    assert_eq!(bmc.power_state().await.unwrap_err().reason(), BmcFault::AuthenticationFailed);
    assert_eq!(service.state().logins, 4);
}

#[tokio::test]
async fn a_wrong_password_is_tried_once_and_then_held() {
    let service = Service::start().await;
    let trust = Trust::Pin(vec![service.pin]);
    let mut bmc = service.client_with("wr0ng-battery", None, &trust, quick()).unwrap();
    for _ in 0..3 {
        let error = bmc.power_state().await.unwrap_err();
        assert_eq!(error.reason(), BmcFault::AuthenticationFailed);
        assert!(
            error.to_string().contains("401 Unauthorized: Base.1.8.ResourceAtUriUnauthorized"),
            "{error}"
        );
        assert!(!format!("{error} {error:?}").contains("battery"), "{error:?}");
        bmc.close().await;
    }
    assert_eq!(service.state().logins, 1);
    // iLO says 400.
    service.hook(|seen, _| {
        (seen.path == SESSIONS).then(|| error_reply(400, "iLO.2.14.UnauthorizedLoginAttempt", "No."))
    });
    let mut bmc = service.client();
    for _ in 0..2 {
        assert_eq!(bmc.power_state().await.unwrap_err().reason(), BmcFault::AuthenticationFailed);
    }
    assert_eq!(service.state().count("POST", SESSIONS), 2);
}

#[tokio::test]
async fn without_a_session_service_the_password_goes_with_every_request() {
    let service = Service::start().await;
    service.set("/redfish/v1/", json!({"Systems": {"@odata.id": "/redfish/v1/Systems"}}));
    let mut bmc = service.client();
    bmc.power_state().await.unwrap();
    bmc.close().await;
    let trust = Trust::Pin(vec![service.pin]);
    let mut wrong = service.client_with("wr0ng", None, &trust, quick()).unwrap();
    for _ in 0..3 {
        assert_eq!(wrong.power_state().await.unwrap_err().reason(), BmcFault::AuthenticationFailed);
    }
    let state = service.state();
    assert_eq!(state.count("POST", SESSIONS), 0);
    let shown = |password| state.seen.iter().filter(|s| s.basic == Some(basic("admin", password))).count();
    assert_eq!((shown(PASSWORD), shown("wr0ng")), (2, 1));
}

#[tokio::test]
async fn a_full_table_of_sessions_is_no_obstacle() {
    let service = Service::start().await;
    service.hook(|seen, _| {
        let full = || error_reply(503, "Base.1.8.SessionLimitExceeded", "Too many sessions.");
        (seen.path == SESSIONS).then(full)
    });
    let mut bmc = service.client();
    bmc.power(PowerRequest::On).await.unwrap();
    assert_eq!(bmc.power_state().await.unwrap(), PowerState::On);
    assert_eq!(service.state().count("POST", SESSIONS), 1);
}

#[tokio::test]
async fn a_login_that_was_dropped_is_finished_by_the_next_call() {
    let service = Service::start().await;
    let mut bmc = service.client();
    {
        let mut call = std::pin::pin!(bmc.power_state());
        // Dropped as soon as the login has reached the service.
        while service.state().logins == 0 {
            tokio::select! {
                _ = &mut call => break,
                () = tokio::task::yield_now() => {}
            }
        }
    }
    bmc.power_state().await.unwrap();
    bmc.close().await;
    let state = service.state();
    assert_eq!((state.logins, state.tokens.len()), (1, 0));
}

#[tokio::test]
async fn a_changed_certificate_ends_it_before_anything_is_sent() {
    let service = Service::start().await;
    let mut bmc = service.client();
    bmc.power_state().await.unwrap();
    bmc.close().await;
    let old = service.pin;
    let new = service.change_certificate();
    let requests = service.state().seen.len();
    let mut bmc = service.client_with(PASSWORD, None, &Trust::Pin(vec![old]), quick()).unwrap();
    let error = bmc.power(PowerRequest::Cycle).await.unwrap_err();
    let BmcError::CertificateChanged { seen, .. } = error else { panic!("{error}") };
    assert_eq!(seen, new);
    assert_eq!(service.state().seen.len(), requests);
    // The second slot is for the next key.
    let mut bmc = service.client_with(PASSWORD, None, &Trust::Pin(vec![old, seen]), quick()).unwrap();
    bmc.power_state().await.unwrap();
    assert!(bmc.certificate().verified);
}

#[tokio::test]
async fn self_signed_certificate_is_refused_and_accepted_by_insecure() {
    let service = Service::start().await;
    let pem = rcgen::generate_simple_self_signed(vec!["ca.example".to_owned()]).unwrap().cert.pem();
    let mut bmc = service.client_with(PASSWORD, None, &Trust::Authorities(Some(pem)), quick()).unwrap();
    let error = bmc.power_state().await.unwrap_err();
    assert_eq!(error.reason(), BmcFault::CertificateUntrusted);
    assert!(error.to_string().contains(&service.pin.to_string()), "{error}");
    assert!(service.state().seen.is_empty());
    let mut bmc = service.client_with(PASSWORD, None, &Trust::Insecure, quick()).unwrap();
    bmc.power_state().await.unwrap();
    assert!(!bmc.certificate().verified && bmc.certificate().pin == Some(service.pin));
}

#[tokio::test]
async fn password_is_not_sent_in_plain_text_unless_allowed() {
    let service = Service::start().await;
    let text = format!("http://{}", service.socket);
    let address = Address::parse(&text, BmcProtocol::Redfish).unwrap();
    let credentials = Credentials { username: "admin".to_owned(), password: PASSWORD.into() };
    let pin = Trust::Pin(vec![Digest::from_sha256([1; 32])]);
    let error = Redfish::new(&checked(&address), &pin, credentials, None, quick()).err().unwrap();
    assert_eq!(error.reason(), BmcFault::AddressNotAllowed);
    assert!(error.to_string().contains("Insecure"), "{error}");
}

#[tokio::test]
async fn several_systems_want_a_name() {
    let service = Service::start().await;
    let two = json!({"Members": [{"@odata.id": SYSTEM}, {"@odata.id": "/redfish/v1/Systems/2"}]});
    service.set("/redfish/v1/Systems", two);
    service.set("/redfish/v1/Systems/2", json!({"PowerState": "PoweringOn"}));
    let error = service.client().power(PowerRequest::ForceOff).await.unwrap_err();
    assert_eq!(error, BmcError::AmbiguousSystem { systems: vec!["1".to_owned(), "2".to_owned()] });
    let trust = Trust::Pin(vec![service.pin]);
    let mut bmc = service.client_with(PASSWORD, Some("2"), &trust, quick()).unwrap();
    assert_eq!(bmc.power_state().await.unwrap(), PowerState::PoweringOn);
    let found = probe::redfish(&mut service.client()).await.unwrap();
    assert_eq!(found.systems, ["1", "2"]);
    assert!(found.to_string().contains("bmc.redfish.systemID is needed"), "{found}");
}

#[tokio::test]
async fn a_page_that_leads_to_itself_makes_no_second_system() {
    let service = Service::start().await;
    let mut page = json!({"Members": [{"@odata.id": SYSTEM}]});
    page["Members@odata.nextLink"] = json!("/redfish/v1/Systems");
    service.set("/redfish/v1/Systems", page);
    assert_eq!(service.client().power_state().await.unwrap(), PowerState::Off);
    assert_eq!(service.state().count("GET", "/redfish/v1/Systems"), 2);
}

#[tokio::test]
async fn a_probe_tells_what_to_write_and_leaves_no_session() {
    let service = Service::start().await;
    let mut bmc = service.client_with(PASSWORD, None, &Trust::Insecure, quick()).unwrap();
    let found = probe::redfish(&mut bmc).await.unwrap();
    let text = found.to_string();
    for line in [
        &format!("certificate   {} (not verified)", service.pin),
        "machine       Contoso, C-1, S1",
        "boot once     None, Pxe, UefiHttp, Hdd",
        "quirks        none",
    ] {
        assert!(text.contains(line), "{text}");
    }
    let data = serde_json::to_value(&found).unwrap();
    assert_eq!(data["pin"], service.pin.to_string());
    assert!(service.state().tokens.is_empty());
    assert!(service.state().seen.iter().all(|seen| seen.method != "PATCH" && seen.path != RESET));
}

#[tokio::test]
async fn the_next_boot_is_overridden_once_and_the_mode_left_alone() {
    let service = Service::start().await;
    let mut bmc = service.client();
    assert_eq!(bmc.next_boot().await.unwrap(), None);
    for source in [BootSource::Pxe, BootSource::Http] {
        bmc.set_next_boot(source, None).await.unwrap();
        assert_eq!(bmc.next_boot().await.unwrap(), Some(source));
    }
    let state = service.state();
    let patch = state.seen.iter().find(|seen| seen.method == "PATCH").unwrap();
    let expected = json!({"Boot": {"BootSourceOverrideEnabled": "Once", "BootSourceOverrideTarget": "Pxe"}});
    assert_eq!((&patch.body, &patch.if_match), (&expected, &None));
}

#[tokio::test]
async fn a_changed_resource_is_read_again_and_patched_once_more() {
    let service = Service::start().await;
    service.state().etags.insert(SYSTEM.to_owned(), "\"1\"".to_owned());
    let mut changed = false;
    service.hook(move |seen, state| {
        if seen.is("PATCH", SYSTEM) && !changed {
            changed = true;
            state.etags.insert(SYSTEM.to_owned(), "\"2\"".to_owned());
        }
        None
    });
    let mut bmc = service.client();
    bmc.set_next_boot(BootSource::Pxe, None).await.unwrap();
    let tags = |service: &Service| {
        let state = service.state();
        let patches = state.seen.iter().filter(|seen| seen.method == "PATCH");
        patches.map(|seen| seen.if_match.clone().unwrap_or_default()).collect::<Vec<_>>()
    };
    assert_eq!(tags(&service), ["\"1\"", "\"2\""]);
    // Refused twice is refused.
    service.hook(|seen, _| {
        (seen.method == "PATCH").then(|| error_reply(412, "Base.1.8.PreconditionFailed", "No match."))
    });
    assert_eq!(bmc.set_next_boot(BootSource::Pxe, None).await.unwrap_err().reason(), BmcFault::Refused);
    assert_eq!(tags(&service).len(), 4);
}

#[tokio::test]
async fn missing_action_is_not_supported() {
    let service = Service::start().await;
    {
        let mut state = service.state();
        let system = state.resources.get_mut(SYSTEM).unwrap();
        system["Actions"]["#ComputerSystem.Reset"] =
            json!({"target": RESET, "@Redfish.ActionInfo": "/redfish/v1/Systems/1/ResetActionInfo"});
        system["LogServices"] = Value::Null;
        system["Boot"]["BootSourceOverrideTarget@Redfish.AllowableValues"] = json!(["Pxe"]);
    }
    let info =
        json!({"Parameters": [{"Name": "ResetType", "AllowableValues": ["On", "ForceOff", "ForceRestart"]}]});
    service.set("/redfish/v1/Systems/1/ResetActionInfo", info);
    let mut bmc = service.client();
    let error = bmc.power(PowerRequest::GracefulOff).await.unwrap_err();
    assert_eq!(error.reason(), BmcFault::NotSupported);
    assert!(error.to_string().contains("On, ForceOff, ForceRestart"), "{error}");
    assert_eq!(bmc.power(PowerRequest::Cycle).await.unwrap(), Performed("ForceRestart"));
    assert_eq!(bmc.set_next_boot(BootSource::Http, None).await.unwrap_err().reason(), BmcFault::NotSupported);
    assert_eq!(bmc.log_tail(5).await.unwrap_err().reason(), BmcFault::NotSupported);
}

#[tokio::test]
async fn a_task_is_followed_to_its_end() {
    let service = Service::start().await;
    let mut polls = 0;
    service.hook(move |seen, state| {
        if seen.is("POST", RESET) {
            return Some(Reply::Is(202, vec![("location", "/taskmon/7".to_owned())], String::new()));
        }
        if seen.path != "/taskmon/7" {
            return None;
        }
        polls += 1;
        if polls < 3 {
            return Some(Reply::Is(202, vec![("retry-after", "0".to_owned())], String::new()));
        }
        state.resources.get_mut(SYSTEM).unwrap()["PowerState"] = json!("On");
        Some(json_reply(200, &json!({"TaskState": "Completed", "TaskStatus": "OK"})))
    });
    let mut bmc = service.client();
    bmc.power(PowerRequest::On).await.unwrap();
    assert_eq!(bmc.power_state().await.unwrap(), PowerState::On);
    let counts = |service: &Service| {
        let state = service.state();
        (state.count("POST", RESET), state.count("GET", "/taskmon/7"))
    };
    assert_eq!(counts(&service), (1, 3));
    let failed = json!({"TaskState": "Exception", "Messages": [{"Message": "The chassis has no power."}]});
    service.hook(move |seen, _| match seen.path.as_str() {
        RESET => Some(json_reply(202, &json!({"TaskMonitor": "/taskmon/8"}))),
        "/taskmon/8" => Some(json_reply(200, &failed)),
        _ => None,
    });
    let error = bmc.power(PowerRequest::On).await.unwrap_err();
    assert_eq!(error.reason(), BmcFault::Refused);
    assert!(error.to_string().contains("The chassis has no power."), "{error}");
}

#[tokio::test]
async fn a_task_that_never_ends_is_timed_out_and_may_have_happened() {
    let service = Service::start().await;
    service.hook(|seen, _| match seen.path.as_str() {
        RESET | "/taskmon/7" => {
            Some(Reply::Is(202, vec![("location", "/taskmon/7".to_owned())], String::new()))
        }
        _ => None,
    });
    let deadlines = Deadlines { call: Duration::from_secs(3), ..quick() };
    let trust = Trust::Pin(vec![service.pin]);
    let mut bmc = service.client_with(PASSWORD, None, &trust, deadlines).unwrap();
    let error = bmc.power(PowerRequest::On).await.unwrap_err();
    assert_eq!((error.reason(), error.may_have_happened()), (BmcFault::TimedOut, true));
    // The client is as good as new.
    assert_eq!(bmc.power_state().await.unwrap(), PowerState::Off);
}

#[tokio::test]
async fn a_task_that_cannot_be_followed_may_have_happened() {
    let service = Service::start().await;
    for status in [401, 403, 500] {
        service.hook(move |seen, _| match seen.path.as_str() {
            RESET => Some(Reply::Is(202, vec![("location", "/taskmon/7".to_owned())], String::new())),
            "/taskmon/7" => Some(Reply::Is(status, vec![], String::new())),
            _ => None,
        });
        let error = service.client().power(PowerRequest::Cycle).await.unwrap_err();
        assert!(error.may_have_happened(), "{status}: {error}");
    }
    assert_eq!(service.state().count("POST", RESET), 3);
}

#[tokio::test]
async fn a_read_is_tried_again_and_a_change_is_not() {
    let service = Service::start().await;
    let mut failures = 2;
    service.hook(move |seen, _| {
        let fails = seen.path == SYSTEM && failures > 0;
        failures -= i32::from(fails);
        fails.then(|| error_reply(503, "Base.1.8.ServiceTemporarilyUnavailable", "Busy."))
    });
    let mut bmc = service.client();
    assert_eq!(bmc.power_state().await.unwrap(), PowerState::Off);
    for reply in [error_reply(500, "Base.1.8.InternalError", "Oops."), Reply::Close] {
        service.hook(move |seen, _| (seen.path == RESET).then(|| reply.clone()));
        let before = service.state().count("POST", RESET);
        let error = bmc.power(PowerRequest::On).await.unwrap_err();
        assert_eq!((error.reason(), error.may_have_happened()), (BmcFault::BmcUnreachable, true), "{error}");
        assert_eq!(service.state().count("POST", RESET), before + 1);
    }
    service.hook(|seen, _| (seen.path == SYSTEM).then_some(Reply::Close));
    let error = bmc.power(PowerRequest::On).await.unwrap_err();
    assert_eq!((error.reason(), error.may_have_happened()), (BmcFault::BmcUnreachable, false), "{error}");
}

#[tokio::test]
async fn hung_service_times_out_at_the_deadline_and_is_not_retried() {
    let service = Service::start().await;
    service.hook(|seen, _| (seen.path == SYSTEM || seen.path == RESET).then_some(Reply::Hang));
    let deadlines = Deadlines { request: Duration::from_millis(1500), ..quick() };
    let trust = Trust::Pin(vec![service.pin]);
    let mut bmc = service.client_with(PASSWORD, None, &trust, deadlines).unwrap();
    let error = bmc.power(PowerRequest::On).await.unwrap_err();
    // It hung on what is read first: nothing was changed.
    assert_eq!((error.reason(), error.may_have_happened()), (BmcFault::TimedOut, false), "{error}");
    service.hook(|seen, _| (seen.path == RESET).then_some(Reply::Hang));
    let error = bmc.power(PowerRequest::On).await.unwrap_err();
    assert_eq!((error.reason(), error.may_have_happened()), (BmcFault::TimedOut, true), "{error}");
    let state = service.state();
    assert_eq!((state.count("GET", SYSTEM), state.count("POST", RESET)), (2, 1));
}

#[tokio::test]
async fn absent_bmc_is_unreachable() {
    let service = Service::start().await;
    let mut bmc = {
        // A port that was free a moment ago.
        let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let address = Address::parse(&free.to_string(), BmcProtocol::Redfish).unwrap();
        let credentials = Credentials { username: "admin".to_owned(), password: PASSWORD.into() };
        Redfish::new(&checked(&address), &Trust::Pin(vec![service.pin]), credentials, None, quick()).unwrap()
    };
    let error = bmc.power(PowerRequest::On).await.unwrap_err();
    assert_eq!((error.reason(), error.may_have_happened()), (BmcFault::BmcUnreachable, false), "{error}");
}

#[tokio::test]
async fn answers_that_make_no_sense_are_named_by_path_and_field() {
    let service = Service::start().await;
    for (body, named) in [
        ("<html>".to_owned(), SYSTEM.to_owned()),
        ("[]".to_owned(), SYSTEM.to_owned()),
        (json!({"PowerState": ["On"]}).to_string(), format!("{SYSTEM} /PowerState")),
        ("[".repeat(100_000), SYSTEM.to_owned()),
        (format!("{{\"x\": \"{}\"}}", "x".repeat(5 << 20)), SYSTEM.to_owned()),
    ] {
        service.hook(move |seen, _| (seen.path == SYSTEM).then(|| Reply::Is(200, vec![], body.clone())));
        let error = service.client().power_state().await.unwrap_err();
        assert_eq!(error.reason(), BmcFault::ProtocolError, "{error}");
        assert!(
            error.to_string().contains(&format!("to {named} "))
                || error.to_string().contains(&format!("to {named}:")),
            "{error}"
        );
        assert_eq!(
            service.client().power(PowerRequest::ForceOff).await.unwrap_err().reason(),
            BmcFault::ProtocolError
        );
    }
    assert_eq!(service.state().count("POST", RESET), 0);
}

#[tokio::test]
async fn redirects_stay_on_the_host_and_do_not_repeat_changes() {
    let service = Service::start().await;
    let other = Service::start().await;
    let elsewhere = format!("https://{}/redfish/v1/Systems/1", other.socket);
    service.hook(move |seen, _| {
        (seen.path == SYSTEM).then(|| Reply::Is(302, vec![("location", elsewhere.clone())], String::new()))
    });
    let error = service.client().power_state().await.unwrap_err();
    assert_eq!(error.reason(), BmcFault::ProtocolError, "{error}");
    assert!(error.to_string().contains("leaves this BMC"), "{error}");
    assert_eq!(other.state().connections, 0);
    // iLO 5 before 1.40 wants a slash.
    let slash = format!("{SYSTEM}/");
    let system = service.state().resources[SYSTEM].clone();
    service.set(&slash, system);
    service.hook(move |seen, _| {
        (seen.path == SYSTEM).then(|| Reply::Is(308, vec![("location", slash.clone())], String::new()))
    });
    assert_eq!(service.client().power_state().await.unwrap(), PowerState::Off);
    service.hook(|seen, _| {
        (seen.path == RESET).then(|| Reply::Is(303, vec![("location", SYSTEM.to_owned())], String::new()))
    });
    assert_eq!(service.client().power(PowerRequest::On).await.unwrap_err().reason(), BmcFault::ProtocolError);
    service.hook(|seen, _| {
        let place = seen.path.clone();
        (seen.path == SYSTEM).then(|| Reply::Is(302, vec![("location", place)], String::new()))
    });
    let error = service.client().power_state().await.unwrap_err();
    assert!(error.to_string().contains("the redirects form a loop"), "{error}");
}

#[tokio::test]
async fn refusal_is_reported_in_the_bmcs_own_words() {
    let service = Service::start().await;
    service.hook(|seen, _| {
        let message = format!("Server is already\r\npowered \u{1b}[1mON. {}", "x".repeat(1000));
        (seen.path == RESET).then(|| error_reply(409, "IDRAC.2.8.PSU501", &message))
    });
    let error = service.client().power(PowerRequest::On).await.unwrap_err();
    assert_eq!((error.reason(), error.may_have_happened()), (BmcFault::Refused, false));
    let text = error.to_string();
    assert!(
        text.contains("409: Server is already powered [1mON. xxx") && text.chars().count() < 420,
        "{text}"
    );
    assert!(!text.contains(char::is_control), "{text:?}");
    service.hook(|seen, _| (seen.path == RESET).then(|| Reply::Is(403, vec![], String::new())));
    let error = service.client().power(PowerRequest::On).await.unwrap_err();
    assert!(error.to_string().contains("privilege"), "{error}");
}

#[tokio::test]
async fn only_a_clear_no_says_that_a_change_was_not_done() {
    let service = Service::start().await;
    let answers = [
        (302, "https://elsewhere.example/", true),
        (303, SYSTEM, true),
        (307, "https://elsewhere.example/", true),
        (308, RESET, true),
        (304, "", true),
        (408, "", true),
        (500, "", true),
        (400, "", false),
        (403, "", false),
        (404, "", false),
        (409, "", false),
    ];
    for (status, place, expected) in answers {
        service.hook(move |seen, _| {
            let headers =
                || (!place.is_empty()).then(|| ("location", place.to_owned())).into_iter().collect();
            (seen.path == RESET).then(|| Reply::Is(status, headers(), String::new()))
        });
        let error = service.client().power(PowerRequest::Cycle).await.unwrap_err();
        assert_eq!(error.may_have_happened(), expected, "{status} {place}: {error}");
    }
    // A failed task had started.
    service.hook(|seen, _| match seen.path.as_str() {
        RESET => Some(json_reply(202, &json!({"TaskMonitor": "/taskmon/8"}))),
        "/taskmon/8" => Some(json_reply(200, &json!({"TaskState": "Killed"}))),
        _ => None,
    });
    let error = service.client().power(PowerRequest::Cycle).await.unwrap_err();
    assert_eq!((error.reason(), error.may_have_happened()), (BmcFault::Refused, true), "{error}");
}

#[tokio::test]
async fn a_login_that_fails_or_hangs_has_changed_nothing() {
    let deadlines = Deadlines { request: Duration::from_millis(1500), ..quick() };
    let away = vec![("location", "https://elsewhere.example/".to_owned())];
    for reply in [
        Reply::Hang,
        Reply::Close,
        Reply::Is(500, vec![], String::new()),
        Reply::Is(307, away, String::new()),
    ] {
        let service = Service::start().await;
        let answer = reply.clone();
        service.hook(move |seen, _| (seen.path == SESSIONS).then(|| answer.clone()));
        let mut bmc = service.client_with(PASSWORD, None, &Trust::Pin(vec![service.pin]), deadlines).unwrap();
        let error = bmc.power(PowerRequest::Cycle).await.unwrap_err();
        assert!(!error.may_have_happened(), "{reply:?}: {error}");
    }
}

#[tokio::test]
async fn unproven_login_is_sent_twice_a_minute_per_account() {
    let deadlines = Deadlines { request: Duration::from_millis(300), ..quick() };
    for reply in [Reply::Hang, Reply::Close, Reply::Is(429, vec![], String::new())] {
        let service = Service::start().await;
        let answer = reply.clone();
        service.hook(move |seen, _| (seen.path == SESSIONS).then(|| answer.clone()));
        let client =
            || service.client_with(PASSWORD, None, &Trust::Pin(vec![service.pin]), deadlines).unwrap();
        let mut first = client();
        first.power_state().await.unwrap_err();
        for _ in 0..3 {
            first.power_state().await.unwrap_err();
            client().power_state().await.unwrap_err();
        }
        let error = first.power_state().await.unwrap_err();
        assert!(error.is_transient() && error.to_string().contains("lock the account"), "{error}");
        assert_eq!(service.state().count("POST", SESSIONS), 2, "{reply:?}");
    }
}

#[tokio::test]
async fn busy_service_that_recovers_accepts_the_second_login() {
    let service = Service::start().await;
    let mut bmc = service.client();
    for logins in 1..4 {
        let mut busy = true;
        service.hook(move |seen, _| {
            (seen.is("POST", SESSIONS) && std::mem::take(&mut busy))
                .then(|| Reply::Is(503, vec![], String::new()))
        });
        bmc.power_state().await.unwrap_err();
        assert_eq!(bmc.power_state().await.unwrap(), PowerState::Off);
        assert_eq!(service.state().logins, logins);
        bmc.close().await;
    }
}

#[tokio::test]
async fn document_is_limited_in_bytes_and_values_and_log_page_may_be_longer() {
    let service = Service::start().await;
    let system = service.state().resources[SYSTEM].clone();
    let with = |field: Value| {
        let mut system = system.clone();
        system["Oem"] = field;
        system.to_string()
    };
    let many = with(json!(vec![json!({"": 0}); 15_000]));
    assert!(many.len() < 200 << 10);
    for (body, problem) in [(with(json!("x".repeat(300 << 10))), "256 KiB"), (many, "20000")] {
        service.hook(move |seen, _| (seen.path == SYSTEM).then(|| Reply::Is(200, vec![], body.clone())));
        let error = service.client().power_state().await.unwrap_err();
        assert_eq!(error.reason(), BmcFault::ProtocolError, "{error}");
        assert!(error.to_string().contains(problem), "{error}");
    }
    // Commas and brackets in texts do not count as values.
    let wordy = with(json!("[{,\\\",".repeat(20_000)));
    service.hook(move |seen, _| (seen.path == SYSTEM).then(|| Reply::Is(200, vec![], wordy.clone())));
    assert_eq!(service.client().power_state().await.unwrap(), PowerState::Off);
    service.hook(|_, _| None);
    let entry = json!({"Created": "2026-11-21T10:00:00Z", "Message": "Fan.", "Oem": "x".repeat(900 << 10)});
    service.set("/redfish/v1/Systems/1/LogServices/Sel/Entries", json!({"Members": [entry]}));
    assert_eq!(service.client().log_tail(5).await.unwrap()[0].message, "Fan.");
}

#[tokio::test]
async fn repeated_password_and_token_are_not_reported() {
    let basic = basic("admin", PASSWORD);
    let encoded = basic.trim_start_matches("Basic ").to_owned();
    let hides = |error: &BmcError, token: &str| {
        let text = format!("{error} {error:?}");
        assert!(!text.contains(PASSWORD) && !text.contains(&encoded) && !text.contains(token), "{text}");
    };
    // The login's body comes back: as a message, as its id, as where to go.
    for status in [302, 400, 401, 403, 409, 422, 500, 503] {
        let service = Service::start().await;
        service.hook(move |seen, _| {
            let Reply::Is(_, _, body) = error_reply(status, PASSWORD, &seen.body.to_string()) else {
                return None;
            };
            let place = format!("https://{PASSWORD}.example/{PASSWORD}");
            (seen.path == SESSIONS).then(|| Reply::Is(status, vec![("location", place)], body))
        });
        let error = service.client().power_state().await.unwrap_err();
        hides(&error, "t-none");
        assert_eq!(error.to_string().contains(&status.to_string()), status != 302, "{error}");
    }
    // The headers of other requests are redacted too, before and after a message is cut.
    for (basic_only, status) in
        [(false, 400), (false, 401), (false, 503), (true, 400), (true, 401), (true, 503)]
    {
        for padding in [0, 290] {
            let service = Service::start().await;
            service.hook(move |seen, _| {
                if basic_only && seen.path == SESSIONS {
                    return Some(Reply::Is(404, vec![], String::new()));
                }
                if seen.path == SESSIONS && seen.method == "POST" {
                    let token = ("x-auth-token", "tok3n-of-the-session".to_owned());
                    return Some(Reply::Is(201, vec![token], "{}".to_owned()));
                }
                let message = format!("{} {:?} {:?} {PASSWORD}", "x".repeat(padding), seen.token, seen.basic);
                (seen.path == SYSTEM || seen.path == "/redfish/v1/Systems")
                    .then(|| error_reply(status, "Base.1.8.GeneralError", &message))
            });
            let error = service.client().power_state().await.unwrap_err();
            hides(&error, "tok3n");
            assert!(!error.to_string().contains(&encoded[..6]), "{error}");
        }
    }
}

#[tokio::test]
async fn a_refused_login_that_was_dropped_is_held_by_close() {
    let service = Service::start().await;
    let trust = Trust::Pin(vec![service.pin]);
    let mut bmc = service.client_with("wr0ng-battery", None, &trust, quick()).unwrap();
    {
        let mut call = std::pin::pin!(bmc.power_state());
        while service.state().logins == 0 {
            tokio::select! {
                _ = &mut call => break,
                () = tokio::task::yield_now() => {}
            }
        }
    }
    bmc.close().await;
    assert_eq!(bmc.power_state().await.unwrap_err().reason(), BmcFault::AuthenticationFailed);
    assert_eq!(service.state().logins, 1);
}

#[tokio::test]
async fn a_password_that_no_answer_has_proved_is_not_repeated_to_a_busy_service() {
    let start = async || {
        let service = Service::start().await;
        service.set("/redfish/v1/", json!({"Systems": {"@odata.id": "/redfish/v1/Systems"}}));
        service
    };
    for reply in [Reply::Is(503, vec![], String::new()), Reply::Close] {
        let service = start().await;
        service.hook(move |seen, _| seen.basic.is_some().then(|| reply.clone()));
        for shown in [1, 2, 2, 2] {
            let error = service.client().power_state().await.unwrap_err();
            assert_eq!(error.reason(), BmcFault::BmcUnreachable, "{error}");
            assert_eq!(service.state().count("GET", "/redfish/v1/Systems"), shown);
        }
    }
    // Once it is proved, reading is patient.
    let service = start().await;
    let mut failures = 2;
    service.hook(move |seen, _| {
        let fails = seen.path == SYSTEM && failures > 0;
        failures -= i32::from(fails);
        fails.then(|| Reply::Is(503, vec![], String::new()))
    });
    assert_eq!(service.client().power_state().await.unwrap(), PowerState::Off);
}

#[tokio::test]
async fn public_facts_are_shown_with_the_pin_and_without_a_login() {
    let service = Service::start().await;
    let address = format!("https://{}", service.socket);
    let reach = Reach { allowed: vec!["127.0.0.0/8".parse().unwrap()], forbidden: Vec::new() };
    let pin = Trust::Pin(vec![Digest::from_sha256([7; 32])]);
    let found = probe::look(&address, BmcProtocol::Redfish, None, &pin, None, &reach, quick()).await;
    let probe::Found::Redfish(found) = found.unwrap() else { unreachable!() };
    assert!(!found.authenticated && !found.verified);
    assert_eq!(found.pin, Some(service.pin));
    assert!(found.to_string().contains(&service.pin.to_string()), "{found}");
    let state = service.state();
    assert!(state.seen.iter().all(|seen| seen.method == "GET" && seen.basic.is_none()), "{:?}", state.logins);
}

#[tokio::test]
async fn a_dropped_client_ends_its_session_also_one_that_was_being_opened() {
    let service = Service::start().await;
    let mut bmc = service.client();
    bmc.power_state().await.unwrap();
    assert_eq!(service.state().tokens.len(), 1);
    drop(bmc);
    until(|| service.state().tokens.is_empty()).await;

    let mut bmc = service.client();
    tokio::select! {
        biased;
        () = until(|| service.state().logins == 2) => {}
        _ = bmc.power_state() => {}
    }
    drop(bmc);
    until(|| {
        service.state().tokens.is_empty()
            && service.state().seen.iter().filter(|seen| seen.method == "DELETE").count() == 2
    })
    .await;
}

async fn until(so: impl Fn() -> bool) {
    let begin = Instant::now();
    while !so() {
        assert!(begin.elapsed() < Duration::from_secs(20), "it did not come");
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn full_session_table_is_transient_and_not_a_wrong_password() {
    for (status, id) in [(400, "iLO.2.8.CreateLimitReachedForResource"), (503, "IDRAC.2.8.RAC0218")] {
        let service = Service::start().await;
        service.hook(move |seen, _| {
            (seen.is("POST", SESSIONS))
                .then(|| error_reply(status, id, "The maximum number of sessions is reached."))
        });
        let mut bmc = service.client();
        let error = bmc.power(PowerRequest::On).await.unwrap_err();
        assert_eq!(error.reason(), BmcFault::Refused, "{error}");
        assert!(error.is_transient() && !error.may_have_happened(), "{error}");
        assert!(error.to_string().contains("session table is full"), "{error}");
        service.hook(|_, _| None);
        assert_eq!(bmc.power_state().await.unwrap(), PowerState::Off);
    }
}
