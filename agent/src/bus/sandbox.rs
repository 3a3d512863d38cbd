//! Restrictions of a tool that runs in a separate unit, in addition to those of its caller.
//!
//! Such a tool comes from the slot and may be root. Even without capabilities, it could
//! signal every other process of root, and take its memory or processor time, because those
//! rights depend on the user. Therefore these system calls are refused, with an error that
//! the tool can handle. One way remains: fcntl on an open file can name a process to signal.
//!
//! Pure. Called by users of `TransientCommand`.

use super::Setting;

/// Signals to others; their limits and priorities.
const REFUSED: [&str; 7] = [
    "kill:EPERM",
    "tkill:EPERM",
    "tgkill:EPERM",
    "rt_sigqueueinfo:EPERM",
    "rt_tgsigqueueinfo:EPERM",
    "pidfd_send_signal:EPERM",
    "@resources:EPERM",
];

/// Combines a caller's settings with those of every tool.
pub fn sandbox(own: Vec<(&'static str, Setting)>) -> Vec<(&'static str, Setting)> {
    let yes = |name| (name, Setting::Flag(true));
    let mut settings = own;
    settings.extend([
        yes("NoNewPrivileges"),
        ("LimitCORE", Setting::Number(0)),
        ("ProtectSystem", Setting::Word("strict")),
        ("ProtectHome", Setting::Word("yes")),
        yes("PrivateTmp"),
        yes("PrivateDevices"),
        yes("ProtectKernelModules"),
        yes("ProtectKernelTunables"),
        yes("ProtectKernelLogs"),
        yes("ProtectControlGroups"),
        yes("ProtectHostname"),
        yes("ProtectClock"),
        yes("RestrictRealtime"),
        yes("RestrictSUIDSGID"),
        ("RestrictNamespaces", Setting::Number(0)),
        yes("LockPersonality"),
        yes("MemoryDenyWriteExecute"),
        ("SystemCallArchitectures", Setting::List(vec!["native"])),
        // The order matters: the second one removes entries from the first.
        ("SystemCallFilter", Setting::Only(vec!["@system-service"])),
        ("SystemCallFilter", Setting::AllBut(REFUSED.to_vec())),
    ]);
    settings
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tool_is_refused_signals_to_others_after_all_else_was_allowed_to_it() {
        let settings = sandbox(vec![("TasksMax", Setting::Number(1))]);
        assert_eq!(settings[0], ("TasksMax", Setting::Number(1)));
        let filters: Vec<_> = settings.iter().filter(|(name, _)| *name == "SystemCallFilter").collect();
        assert_eq!(filters[0].1, Setting::Only(vec!["@system-service"]));
        let Setting::AllBut(refused) = &filters[1].1 else { panic!("{filters:?}") };
        for call in ["kill", "tkill", "tgkill", "rt_sigqueueinfo", "rt_tgsigqueueinfo", "pidfd_send_signal"] {
            assert!(refused.contains(&format!("{call}:EPERM").as_str()), "{call}");
        }
        assert_eq!(filters.len(), 2);
    }
}
