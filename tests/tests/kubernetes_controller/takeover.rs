//! Tests `status.observedNode`, which the controller writes for a takeover token (H2).

use super::*;

#[test]
fn h2_controller_observes_the_node_of_a_takeover_token() {
    let site = Site::shared();
    let name = "takes-over";
    let token = |token: Option<&str>| {
        let machine = objects::machine(name).pxe("52:54:00:00:73:01").redfish("192.0.2.1", ("bmc", name));
        let takeover = token.map(str::to_owned);
        site.apply(&machine.spec(|spec| spec.pxe.as_mut().unwrap().takeover = takeover).json());
    };
    let is_observed = |state: &str| {
        site.until(("machine", name), state, |machine| {
            let (observed, generation) =
                (&machine["status"]["observedNode"], &machine["metadata"]["generation"]);
            observed["state"] == state && observed["observedGeneration"] == *generation
        });
    };
    token(Some("one"));
    is_observed("Absent");
    // Another host's kubelet has registered it.
    site.node(name, None, &[]);
    is_observed("Foreign");
    token(Some("two"));
    is_observed("Foreign");
    site.objects().delete("node", name).unwrap();
    is_observed("Absent");
    site.node(name, Some("bedplate://takes-over"), &[]);
    is_observed("Own");
    token(None);
    let is_gone = |machine: &Value| machine["status"].get("observedNode").is_none();
    site.until(("machine", name), "no token, no observation", is_gone);
    for kind in ["machine", "node"] {
        site.objects().delete(kind, name).unwrap();
    }
}
