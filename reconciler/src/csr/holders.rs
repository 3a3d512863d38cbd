//! Finds the other objects that claim a name or an address of a request for a serving certificate. Called by `csr`; `serving` decides.
//!
//! Machines and Nodes are read from the stores. Services and the addresses of the API server are read live, because the controller watches
//! neither. The answers count for some seconds (`recent`): otherwise each of a kubelet's requests would read all pages of Services.
//!
//! A control plane runs its own API server, and kubeadm gives it the key of the cluster's certificate authority. So an endpoint of the API
//! server is not a claim against it. Another control plane with this address claims it as a Machine or a Node.

use std::net::IpAddr;
use std::sync::Arc;

use bedplate_api::configuration::NodeRole;
use bedplate_api::machine::Machine;
use bedplate_engine::list;
use bedplate_engine::write::{WriteError, read};
use k8s_openapi::api::core::v1::{ConfigMap, Node, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::api::ListParams;
use kube::config::Kubeconfig;
use kube::core::Request;
use kube::{Api, ResourceExt};
use tokio::time::Instant;

use super::serving::{Names, addresses, fixed_addresses, parse};
use crate::cache::claims::{Claim, Claims, Holder};
use crate::context::World;

/// The API server's Service, in the namespace `default`, and its EndpointSlice.
const API_SERVER: &str = "kubernetes";
/// kubeadm's public kubeconfig, in the namespace `kube-public`: the address by which hosts reach the API server.
const CLUSTER_INFO: &str = "cluster-info";

/// Returns the other objects that claim a name or an address that the kubelet of `name` requests. `role`: role of its host, if known.
///
/// # Errors
/// The API server did not answer.
pub(super) async fn holders(
    name: &str,
    names: &Names,
    role: Option<NodeRole>,
    world: &World,
) -> Result<Vec<Holder>, WriteError> {
    let claims = claims(world).await?;
    let mut found = of_api_server(&claims.endpoints, &claims.servers, names, role);
    found.extend(claims.services.iter().filter(|service| is_asked(&service.has, names)).cloned());
    for machine in world.stores.machines.state().iter().filter(|machine| machine.name_any() != name) {
        found.extend(of_machine(machine, names));
    }
    for node in world.stores.nodes.state().iter().filter(|node| node.name_any() != name) {
        found.extend(of_node(node, names));
    }
    Ok(found)
}

/// Returns the claims of the API server and the Services, at most some seconds old.
async fn claims(world: &World) -> Result<Arc<Claims>, WriteError> {
    let mut recent = world.claims.lock().await;
    let now = Instant::now().into_std();
    if let Some(claims) = recent.get(now) {
        return Ok(claims);
    }
    let (endpoints, servers) = read_api_server(world).await?;
    let services = read_services(world).await?;
    Ok(recent.put(now, Claims { endpoints, servers, services }))
}

/// Reads the addresses of all Services.
async fn read_services(world: &World) -> Result<Vec<Holder>, WriteError> {
    let mut found = Vec::new();
    let take = |service: Service| found.extend(of_service(&service));
    list::each(&world.client, "the Services", Request::list, ListParams::default(), take).await?;
    Ok(found)
}

/// Reads the endpoints of the API server, and the servers of kubeadm's public kubeconfig if there is one.
async fn read_api_server(world: &World) -> Result<(Vec<String>, Vec<String>), WriteError> {
    let slices: Api<EndpointSlice> = Api::namespaced(world.client.clone(), "default");
    let slice = read(&slices, API_SERVER).await?;
    let maps: Api<ConfigMap> = Api::namespaced(world.client.clone(), "kube-public");
    let map = read(&maps, CLUSTER_INFO).await?;
    let endpoints = slice.iter().flat_map(|slice| &slice.endpoints);
    let endpoints = endpoints.flat_map(|endpoint| endpoint.addresses.clone()).collect();
    Ok((endpoints, map.iter().flat_map(servers).collect()))
}

/// Returns the names and addresses of the API server. A server of the kubeconfig that is not an endpoint may
/// be shared, such as that of a load balancer.
fn of_api_server(
    endpoints: &[String],
    servers: &[String],
    names: &Names,
    role: Option<NodeRole>,
) -> Vec<Holder> {
    let direct: Vec<IpAddr> = endpoints.iter().filter_map(|host| parse(host)).collect();
    let is_direct = |host: &str| parse(host).is_some_and(|address| direct.contains(&address));
    let (claim, may_be_direct) = match role {
        Some(NodeRole::ControlPlane) => (Claim::Said, false),
        Some(NodeRole::Worker) => (Claim::Certain, true),
        None => (Claim::Defined, true),
    };
    let hosts = endpoints.iter().chain(servers).filter(|host| may_be_direct || !is_direct(host));
    hosts.filter_map(|host| holder(host, names, "the API server", claim)).collect()
}

/// Returns the hosts of the API server in kubeadm's public kubeconfig.
fn servers(map: &ConfigMap) -> Vec<String> {
    let text = map.data.as_ref().and_then(|data| data.get("kubeconfig"));
    let Some(config) = text.and_then(|text| Kubeconfig::from_yaml(text).ok()) else { return Vec::new() };
    let servers = config.clusters.into_iter().filter_map(|named| named.cluster?.server);
    let host = |server: String| {
        let uri: http::Uri = server.parse().ok()?;
        Some(uri.host()?.trim_start_matches('[').trim_end_matches(']').to_owned())
    };
    servers.filter_map(host).collect()
}

/// Returns the addresses that a Service has. The API server allocates its cluster addresses. A user who may write a Service chooses its external
/// addresses and those of its load balancer, which are often those of Nodes.
fn of_service(service: &Service) -> Vec<Holder> {
    let spec = service.spec.as_ref();
    let of_cluster =
        spec.iter().flat_map(|spec| spec.cluster_ip.iter().chain(spec.cluster_ips.iter().flatten()));
    let external =
        spec.iter().flat_map(|spec| spec.external_ips.iter().flatten().chain(&spec.load_balancer_ip));
    let status = service.status.as_ref().and_then(|status| status.load_balancer.as_ref());
    let balanced =
        status.iter().flat_map(|status| status.ingress.iter().flatten()).filter_map(|i| i.ip.as_ref());
    let by = format!("Service {}/{}", service.namespace().unwrap_or_default(), service.name_any());
    let allocated = of_cluster.map(|address| (address, Claim::Certain));
    let all = allocated.chain(external.chain(balanced).map(|address| (address, Claim::Said)));
    // A Service without a cluster address has the word `None` there.
    let all = all.filter(|(address, _)| parse(address).is_some());
    all.map(|(address, claim)| Holder { has: address.clone(), by: by.clone(), claim }).collect()
}

/// Returns the names that another Machine has.
fn of_machine(machine: &Machine, names: &Names) -> Vec<Holder> {
    let (own, fixed) = (addresses(machine), fixed_addresses(machine));
    let holder = |address: &IpAddr| {
        let claim = if fixed.contains(address) { Claim::Defined } else { Claim::Said };
        Holder { has: address.to_string(), by: format!("Machine {}", machine.name_any()), claim }
    };
    names.ips.iter().filter(|address| own.contains(address)).map(holder).collect()
}

/// Returns the names that another Node has.
fn of_node(node: &Node, names: &Names) -> Vec<Holder> {
    let said = node.status.iter().flat_map(|status| status.addresses.iter().flatten());
    let by = || format!("Node {}", node.name_any());
    said.filter_map(|said| holder(&said.address, names, &by(), Claim::Said)).collect()
}

/// Returns a holder if a host, by name or address, is one of the names.
fn holder(host: &str, names: &Names, by: &str, claim: Claim) -> Option<Holder> {
    is_asked(host, names).then(|| Holder { has: host.to_owned(), by: by.to_owned(), claim })
}

/// Returns true if a host, by name or address, is one of the names.
fn is_asked(host: &str, names: &Names) -> bool {
    match parse(host) {
        Some(address) => names.ips.contains(&address),
        None => names.dns.iter().any(|name| name == host),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn names() -> Names {
        Names {
            dns: vec!["a".to_owned()],
            ips: vec!["10.7.0.21".parse().unwrap(), "fd00::21".parse().unwrap()],
        }
    }

    fn has(holders: &[Holder]) -> Vec<&str> {
        holders.iter().map(|holder| holder.has.as_str()).collect()
    }

    /// The attack: a user with one namespace gives a Service the addresses of all hosts.
    #[test]
    fn trust_5_external_service_address_is_left_to_a_user_not_denied() {
        for (spec, status, claim) in [
            (json!({ "clusterIP": "10.7.0.21" }), json!({}), Claim::Certain),
            (
                json!({ "clusterIP": "10.96.0.1", "clusterIPs": ["10.96.0.1", "fd00:0::21"] }),
                json!({}),
                Claim::Certain,
            ),
            (json!({ "clusterIP": "None", "externalIPs": ["10.7.0.21"] }), json!({}), Claim::Said),
            (json!({ "loadBalancerIP": "10.7.0.21" }), json!({}), Claim::Said),
            (
                json!({}),
                json!({ "loadBalancer": { "ingress": [{ "ip": "::ffff:10.7.0.21" }] } }),
                Claim::Said,
            ),
        ] {
            let service =
                json!({ "metadata": { "name": "s", "namespace": "n" }, "spec": spec, "status": status });
            let mut found = of_service(&serde_json::from_value(service).unwrap());
            found.retain(|holder| is_asked(&holder.has, &names()));
            assert_eq!((found.len(), found[0].claim), (1, claim), "{spec} {status}: {found:?}");
            assert_eq!(found[0].by, "Service n/s");
        }
        // Without a cluster address; the Node of the test has this name.
        let other = json!({ "metadata": {}, "spec": { "clusterIP": "None", "loadBalancerIP": "a" } });
        assert!(of_service(&serde_json::from_value(other).unwrap()).is_empty());
    }

    #[test]
    fn trust_5_fixed_and_reported_addresses_are_a_machines_own() {
        for (interfaces, addresses, claim) in [
            (
                json!([{ "macAddress": "02:00:00:00:00:01", "addresses": ["10.7.0.21/24"] }]),
                json!([]),
                Claim::Defined,
            ),
            (
                json!([{ "macAddress": "02:00:00:00:00:01" }]),
                json!([{ "type": "InternalIP", "address": "10.7.0.21" }, { "type": "Hostname", "address": "b" }]),
                Claim::Said,
            ),
        ] {
            let machine = json!({ "apiVersion": "bedplate.dev/v1alpha1", "kind": "Machine", "metadata": { "name": "b" },
                "spec": { "provider": "pxe", "pxe": { "interfaces": interfaces } }, "status": { "addresses": addresses } });
            let mut machine: Machine = serde_json::from_value(machine).unwrap();
            // The form in the store.
            crate::watch::prune::machine(&mut machine);
            let found = of_machine(&machine, &names());
            assert_eq!((has(&found), found[0].claim), (vec!["10.7.0.21"], claim), "{interfaces} {addresses}");
        }
    }

    #[test]
    fn trust_5_names_and_addresses_of_another_node_are_its_own() {
        let node = json!({ "metadata": { "name": "b" }, "status": { "addresses":
            [{ "type": "InternalIP", "address": "10.7.0.21" }, { "type": "Hostname", "address": "a" },
             { "type": "ExternalIP", "address": "192.0.2.1" }] } });
        let mut node: Node = serde_json::from_value(node).unwrap();
        crate::watch::prune::node(&mut node);
        let found = of_node(&node, &names());
        assert_eq!(has(&found), ["10.7.0.21", "a"]);
        assert!(found.iter().all(|holder| holder.claim == Claim::Said), "{found:?}");
    }

    #[test]
    fn trust_5_api_server_address_is_allowed_only_for_a_control_plane() {
        use NodeRole::{ControlPlane, Worker};
        let list = |hosts: &[&str]| hosts.iter().map(|host| (*host).to_owned()).collect::<Vec<_>>();
        for (endpoints, servers, role, claim) in [
            (&["10.7.0.21"][..], &[][..], Some(Worker), Some(Claim::Certain)),
            (&["10.7.0.21"], &[], None, Some(Claim::Defined)),
            (&["10.7.0.21"], &["10.7.0.21"], Some(ControlPlane), None),
            (&["::ffff:10.7.0.21"], &["10.7.0.21"], Some(ControlPlane), None),
            // Address that all control planes share, or of one whose API server does not run yet.
            (&["10.7.0.12"], &["10.7.0.21"], Some(ControlPlane), Some(Claim::Said)),
            (&["10.7.0.12"], &["10.7.0.21"], Some(Worker), Some(Claim::Certain)),
            (&["10.7.0.12"], &["a"], Some(Worker), Some(Claim::Certain)),
            (&["10.7.0.12"], &["a"], Some(ControlPlane), Some(Claim::Said)),
            (&["10.7.0.12"], &["api.example"], Some(Worker), None),
        ] {
            let found = of_api_server(&list(endpoints), &list(servers), &names(), role);
            let claims: Vec<Claim> = found.iter().map(|holder| holder.claim).collect();
            assert_eq!(claims, Vec::from_iter(claim), "{endpoints:?} {servers:?} {role:?}");
        }
    }

    #[test]
    fn trust_5_kubeadms_public_address_is_the_api_servers() {
        let kubeconfig =
            |server: &str| format!("clusters: [{{name: c, cluster: {{server: \"{server}\"}}}}]\n");
        for (server, host) in [
            ("https://10.7.0.21:6443", "10.7.0.21"),
            ("https://[fd00::21]:6443", "fd00::21"),
            ("https://a:6443", "a"),
        ] {
            let map: ConfigMap = serde_json::from_value(
                json!({ "metadata": {}, "data": { "kubeconfig": kubeconfig(server) } }),
            )
            .unwrap();
            let found = servers(&map);
            assert_eq!(found, [host]);
            assert!(holder(&found[0], &names(), "the API server", Claim::Certain).is_some(), "{server}");
        }
        for data in [json!({}), json!({ "kubeconfig": "- x" })] {
            let map: ConfigMap = serde_json::from_value(json!({ "metadata": {}, "data": data })).unwrap();
            assert!(servers(&map).is_empty());
        }
    }
}
