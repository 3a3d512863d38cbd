//! Redfish of a simulated BMC: documents and changes, without sockets. Shapes of the standard (DSP0266), such
//! that foreign clients accept them; no registries, schemas, events or tasks.

use std::time::Instant;

use serde_json::{Value, json};

use super::chassis::{ActError, Action, By, Chassis, Override, Shared, Source};
use super::service::{Bmc, Entry};

const ROOT: &str = "/redfish/v1";
const SYSTEMS: &str = "/redfish/v1/Systems";
const MANAGER: &str = "/redfish/v1/Managers/1";
const SESSIONS: &str = "/redfish/v1/SessionService/Sessions";
/// Names of boot overrides.
const TARGETS: [(&str, Option<Source>); 4] = [
    ("None", None),
    ("Hdd", Some(Source::Disk)),
    ("Pxe", Some(Source::Pxe)),
    ("UefiHttp", Some(Source::Http)),
];

/// A request.
#[derive(Debug, Default)]
pub(super) struct Call {
    pub(super) method: String,
    pub(super) path: String,
    pub(super) if_match: Option<String>,
    pub(super) token: Option<String>,
    pub(super) basic: Option<(String, String)>,
    pub(super) body: Value,
}

/// An answer.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Reply {
    pub(super) status: u16,
    pub(super) headers: Vec<(&'static str, String)>,
    pub(super) body: String,
}

fn reply(status: u16, body: &Value) -> Reply {
    Reply { status, headers: Vec::new(), body: body.to_string() }
}

fn empty() -> Reply {
    Reply { status: 204, headers: Vec::new(), body: String::new() }
}

/// An error with a message of the `Base` registry.
pub(super) fn error(status: u16, key: &str, message: &str) -> Reply {
    let id = format!("Base.1.8.{key}");
    let info = json!([{
        "@odata.type": "#Message.v1_1_1.Message", "MessageId": id, "Message": message, "Severity": "Warning",
    }]);
    let body = json!({"error": {"code": id, "message": message, "@Message.ExtendedInfo": info}});
    reply(status, &body)
}

fn missing() -> Reply {
    error(404, "ResourceMissingAtURI", "The resource at the URI was not found.")
}

fn not_allowed() -> Reply {
    error(405, "OperationNotAllowed", "The HTTP method is not allowed on this resource.")
}

fn link(path: &str) -> Value {
    json!({ "@odata.id": path })
}

fn collection(path: &str, kind: &str, members: &[String]) -> Value {
    let members: Vec<Value> = members.iter().map(|member| link(member)).collect();
    json!({
        "@odata.id": path, "@odata.type": format!("#{kind}.{kind}"), "Name": kind,
        "Members@odata.count": members.len(), "Members": members,
    })
}

impl Bmc {
    /// Answers a request.
    pub(super) fn redfish(&self, call: &Call) -> Reply {
        self.count(|counters| counters.requests += 1);
        if let Some(status) = self.faults().status {
            return error(status, "InternalError", "The request failed due to an internal service error.");
        }
        let path = call.path.trim_end_matches('/');
        if path == "/redfish" {
            return reply(200, &json!({ "v1": "/redfish/v1/" }));
        }
        if path == ROOT && call.method == "GET" {
            return reply(200, &self.root());
        }
        if path == SESSIONS && call.method == "POST" && self.settings.sessions > 0 {
            return self.log_in(&call.body);
        }
        if !self.is_let_in(call) {
            let mut refusal = error(401, "NoValidSession", "There is no valid session established.");
            refusal.headers.push(("www-authenticate", "Basic realm=\"BMC\"".to_owned()));
            return refusal;
        }
        self.inside(call, path)
    }

    fn is_let_in(&self, call: &Call) -> bool {
        match (&call.token, &call.basic) {
            (Some(token), _) => self.has_session(token),
            (None, Some((user, password))) => self.judge(user, password) == Entry::Right,
            (None, None) => false,
        }
    }

    fn log_in(&self, body: &Value) -> Reply {
        let word = |name: &str| body.get(name).and_then(Value::as_str).unwrap_or_default();
        match self.judge(word("UserName"), word("Password")) {
            Entry::Right => {}
            Entry::Wrong => {
                return error(401, "ResourceAtUriUnauthorized", "Invalid user name or password.");
            }
            Entry::Locked => return error(403, "AccountLocked", "The account is locked."),
        }
        let Some((id, token)) = self.open_session() else {
            let text = "The session establishment failed due to the number of simultaneous sessions.";
            return error(503, "SessionLimitExceeded", text);
        };
        let mut made = reply(201, &self.session(id));
        made.headers.push(("x-auth-token", token));
        made.headers.push(("location", format!("{SESSIONS}/{id}")));
        made
    }

    fn inside(&self, call: &Call, path: &str) -> Reply {
        let rest = path.strip_prefix(SYSTEMS).and_then(|rest| rest.strip_prefix('/'));
        if let Some(rest) = rest {
            let (id, below) = rest.split_once('/').unwrap_or((rest, ""));
            return self.system(id).map_or_else(missing, |system| self.on_system(call, system, below));
        }
        let session = path.strip_prefix(SESSIONS).and_then(|rest| rest.strip_prefix('/'));
        if let Some(id) = session.and_then(|id| id.parse::<u32>().ok()) {
            return match call.method.as_str() {
                "GET" if self.session_ids().contains(&id) => reply(200, &self.session(id)),
                "DELETE" if self.close_session(id) => empty(),
                "GET" | "DELETE" => missing(),
                _ => not_allowed(),
            };
        }
        match self.document(path) {
            Some(_) if call.method != "GET" => not_allowed(),
            Some(document) => reply(200, &document),
            None => missing(),
        }
    }

    /// Documents that can only be read and do not belong to a system.
    fn document(&self, path: &str) -> Option<Value> {
        let sessions = self.settings.sessions > 0;
        Some(match path {
            SYSTEMS => {
                let ids = (1..=self.systems.len()).map(|number| format!("{SYSTEMS}/{number}"));
                collection(path, "ComputerSystemCollection", &ids.collect::<Vec<_>>())
            }
            "/redfish/v1/Managers" => collection(path, "ManagerCollection", &[MANAGER.to_owned()]),
            MANAGER => self.manager(),
            "/redfish/v1/SessionService" if sessions => json!({
                "@odata.id": path, "@odata.type": "#SessionService.v1_1_8.SessionService", "Id": "SessionService",
                "Name": "Session service", "ServiceEnabled": true, "SessionTimeout": 300, "Sessions": link(SESSIONS),
            }),
            SESSIONS if sessions => {
                let ids: Vec<String> =
                    self.session_ids().iter().map(|id| format!("{SESSIONS}/{id}")).collect();
                collection(path, "SessionCollection", &ids)
            }
            _ => return None,
        })
    }

    fn root(&self) -> Value {
        let mut root = json!({
            "@odata.id": "/redfish/v1/", "@odata.type": "#ServiceRoot.v1_11_0.ServiceRoot", "Id": "RootService",
            "Name": "Root service", "RedfishVersion": "1.15.0", "Vendor": "Bedplate", "Product": "BMC simulator",
            "Systems": link(SYSTEMS), "Managers": link("/redfish/v1/Managers"), "Links": {},
        });
        if self.settings.sessions > 0 {
            root["SessionService"] = link("/redfish/v1/SessionService");
            root["Links"]["Sessions"] = link(SESSIONS);
        }
        root
    }

    fn session(&self, id: u32) -> Value {
        json!({
            "@odata.id": format!("{SESSIONS}/{id}"), "@odata.type": "#Session.v1_4_0.Session", "Id": id.to_string(),
            "Name": "Session", "UserName": self.settings.user,
        })
    }

    fn manager(&self) -> Value {
        let systems: Vec<Value> =
            (1..=self.systems.len()).map(|number| link(&format!("{SYSTEMS}/{number}"))).collect();
        json!({
            "@odata.id": MANAGER, "@odata.type": "#Manager.v1_13_0.Manager", "Id": "1", "Name": "Manager",
            "ManagerType": "BMC", "Model": "Simulated BMC", "FirmwareVersion": "1.2.3", "PowerState": "On",
            "Status": {"State": "Enabled", "Health": "OK"}, "Links": {"ManagerForServers": systems},
        })
    }

    fn system(&self, id: &str) -> Option<(usize, &Shared)> {
        let number = id.parse::<usize>().ok()?;
        Some((number, self.systems.get(number.checked_sub(1)?)?))
    }

    fn on_system(&self, call: &Call, (number, system): (usize, &Shared), below: &str) -> Reply {
        let path = format!("{SYSTEMS}/{number}");
        match (call.method.as_str(), below) {
            ("GET", "") => self.show(&path, &mut system.lock()),
            ("PATCH", "") => patch(call, &mut system.lock()),
            ("POST", "Actions/ComputerSystem.Reset") => self.reset(&call.body, system),
            ("GET", _) => {
                log(&path, below, &mut system.lock()).map_or_else(missing, |body| reply(200, &body))
            }
            _ => not_allowed(),
        }
    }

    fn show(&self, path: &str, system: &mut Chassis) -> Reply {
        self.tells();
        let now = Instant::now();
        let power = if system.is_reported_on(now) { "On" } else { "Off" };
        let boot = system.boot_override(now);
        let enabled = match boot {
            None => "Disabled",
            Some(Override { once: true, .. }) => "Once",
            Some(Override { once: false, .. }) => "Continuous",
        };
        let mut value = json!({
            "@odata.id": path, "@odata.type": "#ComputerSystem.v1_16_0.ComputerSystem",
            "Id": path.rsplit('/').next(), "Name": system.name(), "SystemType": "Physical",
            "Manufacturer": "Bedplate", "Model": "Simulated server", "SerialNumber": format!("S-{}", system.name()),
            "UUID": system.uuid(), "PowerState": power,
            "Status": {"State": "Enabled", "Health": "OK", "HealthRollup": "OK"},
            "Boot": {
                "BootSourceOverrideEnabled": enabled,
                "BootSourceOverrideEnabled@Redfish.AllowableValues": ["Disabled", "Once", "Continuous"],
                "BootSourceOverrideTarget": target_of(boot),
                "BootSourceOverrideTarget@Redfish.AllowableValues": TARGETS.map(|(name, _)| name),
                "BootSourceOverrideMode": "UEFI",
            },
            "Actions": {"#ComputerSystem.Reset": {
                "target": format!("{path}/Actions/ComputerSystem.Reset"),
                "ResetType@Redfish.AllowableValues": self.settings.reset_types,
            }},
            "LogServices": link(&format!("{path}/LogServices")),
            "Links": {"ManagedBy": [link(MANAGER)]},
        });
        let tag = etag(system);
        value["@odata.etag"] = json!(tag);
        if system.mac().is_some() {
            value["EthernetInterfaces"] = link(&format!("{path}/EthernetInterfaces"));
        }
        let mut answer = reply(200, &value);
        answer.headers.push(("etag", tag));
        answer
    }

    fn reset(&self, body: &Value, system: &Shared) -> Reply {
        let word = body.get("ResetType").and_then(Value::as_str).unwrap_or_default();
        let on = system.lock().is_on(Instant::now());
        let action = match word {
            _ if !self.settings.reset_types.contains(&word) => None,
            "On" => Some(Action::On),
            "ForceOff" => Some(Action::ForceOff),
            "GracefulShutdown" => Some(Action::GracefulOff),
            "ForceRestart" => Some(Action::Reset),
            "PowerCycle" => Some(Action::Cycle),
            "PushPowerButton" if on => Some(Action::GracefulOff),
            "PushPowerButton" => Some(Action::On),
            _ => None,
        };
        let Some(action) = action else {
            let text = "The value of ResetType is not in the list of acceptable values.";
            return error(400, "ActionParameterNotSupported", text);
        };
        match self.act(system, action, By::Redfish) {
            Ok(()) => empty(),
            Err(ActError::State) => {
                error(409, "ResourceInStandby", "The request cannot be done while the system is powered off.")
            }
            Err(ActError::Hardware(problem)) => error(500, "InternalError", &format!("{problem:#}")),
        }
    }
}

fn etag(system: &Chassis) -> String {
    format!("\"{}\"", system.version())
}

fn target_of(boot: Option<Override>) -> &'static str {
    TARGETS
        .iter()
        .find(|(_, source)| *source == boot.map(|boot| boot.source))
        .map_or("None", |(name, _)| name)
}

fn patch(call: &Call, system: &mut Chassis) -> Reply {
    if call.if_match.as_ref().is_some_and(|tag| tag != "*" && *tag != etag(system)) {
        return error(412, "PreconditionFailed", "The ETag supplied did not match the resource's.");
    }
    let Some(boot) = call.body.get("Boot").and_then(Value::as_object) else {
        return error(400, "PropertyUnknown", "Only Boot can be changed.");
    };
    let now = Instant::now();
    let before = system.boot_override(now);
    let word = |name: &str| boot.get(name).and_then(Value::as_str);
    let target = word("BootSourceOverrideTarget").unwrap_or_else(|| target_of(before));
    let Some((_, source)) = TARGETS.iter().find(|(name, _)| *name == target) else {
        return error(
            400,
            "PropertyValueNotInList",
            "The value of BootSourceOverrideTarget is not in the list.",
        );
    };
    let once = match word("BootSourceOverrideEnabled") {
        Some("Disabled") => None,
        Some("Continuous") => Some(false),
        Some("Once") => Some(true),
        None => Some(before.is_none_or(|boot| boot.once)),
        Some(_) => {
            return error(
                400,
                "PropertyValueNotInList",
                "The value of BootSourceOverrideEnabled is not in the list.",
            );
        }
    };
    let wanted = source.zip(once).map(|(source, once)| Override { source, once });
    system.set_boot(wanted, false, now);
    empty()
}

/// Network cards, and a log with what has happened to the power.
fn log(path: &str, below: &str, system: &mut Chassis) -> Option<Value> {
    let own = format!("{path}/{below}");
    let member = |name: &str| vec![format!("{own}/{name}")];
    Some(match below {
        "LogServices" => collection(&own, "LogServiceCollection", &member("Sel")),
        "LogServices/Sel" => json!({
            "@odata.id": own, "@odata.type": "#LogService.v1_2_0.LogService", "Id": "Sel", "Name": "Event log",
            "Entries": link(&format!("{own}/Entries")),
        }),
        "LogServices/Sel/Entries" => {
            let entry = |(number, change): (usize, &super::chassis::Change)| {
                let message = if change.on { "Power was switched on." } else { "Power was switched off." };
                json!({
                    "@odata.id": format!("{own}/{number}"), "@odata.type": "#LogEntry.v1_9_0.LogEntry",
                    "Id": number.to_string(), "Name": "Event", "EntryType": "SEL", "Severity": "OK",
                    "Created": change.at.to_string(), "Message": message,
                })
            };
            let entries: Vec<Value> = (1..).zip(system.changes(Instant::now())).map(entry).collect();
            let mut all = collection(&own, "LogEntryCollection", &[]);
            all["Members@odata.count"] = json!(entries.len());
            all["Members"] = json!(entries);
            all
        }
        "EthernetInterfaces" if system.mac().is_some() => {
            collection(&own, "EthernetInterfaceCollection", &member("1"))
        }
        "EthernetInterfaces/1" => json!({
            "@odata.id": own, "@odata.type": "#EthernetInterface.v1_6_0.EthernetInterface", "Id": "1", "Name": "Card 1",
            "MACAddress": system.mac()?.to_string(), "Status": {"State": "Enabled", "Health": "OK"},
        }),
        _ => return None,
    })
}
