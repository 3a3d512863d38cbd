//! Lists all objects of a kind live, page by page. Called by programs where a watch is not enough.

use bedplate_api::bounded_times::BoundedTimes;
use kube::api::ListParams;
use kube::core::{ObjectList, Request};
use kube::{Client, Resource};
use serde::de::DeserializeOwned;

use super::write::{WriteError, ask};

/// Objects per page.
const PAGE_SIZE: u32 = 500;

/// Makes the request for a page: [`Request::list`] or [`Request::list_metadata`].
pub type Form = fn(&Request, &ListParams) -> Result<http::Request<Vec<u8>>, kube::core::request::Error>;

/// Lists the objects of all namespaces, and calls `take` with each. `what` names them in errors.
///
/// # Errors
/// The API server did not answer one of the requests. `take` may have been called.
pub async fn each<K>(
    client: &Client,
    what: &str,
    form: Form,
    parameters: ListParams,
    mut take: impl FnMut(K),
) -> Result<(), WriteError>
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned,
{
    let request = Request::new(K::url_path(&(), None));
    let mut parameters = parameters.limit(PAGE_SIZE);
    loop {
        let page = async {
            let request = form(&request, &parameters).map_err(kube::Error::BuildRequest)?;
            client.request::<ObjectList<BoundedTimes<K>>>(request).await
        };
        let page = ask(what, page).await?;
        page.items.into_iter().for_each(|BoundedTimes(object)| take(object));
        let Some(next) = page.metadata.continue_.filter(|next| !next.is_empty()) else { return Ok(()) };
        parameters = parameters.continue_token(&next);
    }
}
