//! User data of our bootstrap provider compared with that of upstream's, for the same KubeadmConfigs (docs/reference/bootstrap.md). Both providers run on
//! one API server, each in a namespace of its own. 22 CPU seconds.
//!
//! Compared is the parsed form: the cloud-config, and each document of kubeadm's files in it. Tokens differ and are replaced.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on has failed")]

mod soak_bootstrap {
    pub(crate) mod document;
    pub(crate) mod inputs;
    pub(crate) mod site;
}

use self::soak_bootstrap::document::{differences, parsed};
use self::soak_bootstrap::inputs::inputs;
use self::soak_bootstrap::site::{OURS, Site, UPSTREAMS};

#[test]
fn b1_user_data_has_the_parsed_form_of_upstreams() {
    let inputs = inputs();
    let site = Site::start();
    for input in &inputs {
        for namespace in [OURS, UPSTREAMS] {
            site.create(namespace, input);
        }
    }
    let mut unequal = Vec::new();
    for input in &inputs {
        let [ours, upstreams] = [OURS, UPSTREAMS].map(|namespace| site.user_data(namespace, input));
        let found = differences(&parsed(&ours), &parsed(&upstreams));
        if !found.is_empty() {
            unequal.push(format!("{}:\n  {}", input.name, found.join("\n  ")));
        }
    }
    assert!(unequal.is_empty(), "{} of {}:\n{}", unequal.len(), inputs.len(), unequal.join("\n"));
    println!("{} KubeadmConfigs have the same user data", inputs.len());
}
