//! User data of a claimant: any bytes are planned or refused, never a panic; errors never have content; what is accepted has plain
//! paths and bounded contents, and renders.
#![no_main]

use bedplate_bootstrap::jinja::Facts;
use bedplate_bootstrap::user_data::{Accepted, Plan, Unsupported, UserData, plan_user_data};
use libfuzzer_sys::fuzz_target;

const FACTS: Facts<'static> = Facts {
    provider_id: "bedplate://rack-1/6f9c",
    node_name: "md-0-x2x",
    local_hostname: "md-0-x2x.example",
    instance_id: "6f9c",
    platform: "bedplate",
};

/// Text of the seeds that stands for a secret. No key of cloud-init can have it.
const SECRET: &str = "Correct+Horse";

fn plan(value: &[u8], unsupported: Unsupported) -> Option<Accepted> {
    match plan_user_data(UserData { value, format: None }, &FACTS, unsupported) {
        Ok(accepted) => Some(accepted),
        Err(error) => {
            assert!(!error.0.is_empty());
            assert!(!format!("{error} {error:?}").contains(SECRET));
            None
        }
    }
}

fn check(plan: &Plan) {
    let mut bytes = 0;
    for file in plan.files.iter().chain(&plan.deferred_files) {
        assert!(file.path.starts_with('/') && !file.path.ends_with('/'));
        assert!(file.path.split('/').all(|part| part != ".." && part != "."));
        assert!(file.mode <= 0o7777 && !file.path.contains('\0'));
        bytes += file.content.len();
    }
    assert!(bytes <= 16 << 20);
    assert!(!plan.run_script().contains('\0') && !plan.boot_script().contains('\0'));
    let rendered = plan.render();
    assert!(rendered.memory.iter().all(|file| file.path.starts_with("/run/bedplate/user-data/")));
}

fuzz_target!(|input: &[u8]| {
    let strict = plan(input, Unsupported::Refuse);
    let lenient = plan(input, Unsupported::Ignore);
    if let Some(accepted) = &strict {
        assert!(accepted.ignored.is_empty());
        assert_eq!(strict, lenient);
    }
    if let Some(accepted) = &lenient {
        check(&accepted.plan);
    }
});
