//! Routes that know their paths: axum's router does not list its routes. Two things need the list:
//! the split of an address into project and collection, and the API's description.
//!
//! What must never happen here: a route that is served and not known.

use std::collections::BTreeSet;
use std::fmt;

use axum::Router;
use axum::extract::{MatchedPath, Request};
use axum::middleware::{self, Next};
use axum::routing::MethodRouter;

use super::App;
use super::backend::Backend;

/// The route that an answer came by, with the names of its variable parts in place of the client's
/// text.
#[derive(Debug, Clone)]
pub struct Route {
    below: &'static str,
    matched: MatchedPath,
}

impl fmt::Display for Route {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.below, self.matched.as_str())
    }
}

/// A part of an API.
pub(super) struct Routes<B> {
    router: Router<App<B>>,
    paths: Vec<String>,
}

impl<B: Backend> Routes<B> {
    pub(super) fn new() -> Self {
        Self { router: Router::new(), paths: Vec::new() }
    }

    /// Adds a route, like axum's method of this name.
    pub(super) fn route(mut self, path: &str, methods: MethodRouter<App<B>>) -> Self {
        self.paths.push(path.to_owned());
        self.router = self.router.route(path, methods);
        self
    }

    /// Merges other routes, like axum's method of this name.
    pub(super) fn merge(mut self, other: Self) -> Self {
        self.paths.extend(other.paths);
        self.router = self.router.merge(other.router);
        self
    }

    /// The first words of all paths.
    pub(super) fn collections(&self) -> BTreeSet<String> {
        let first = |path: &String| path.split('/').nth(1).unwrap_or_default().to_owned();
        self.paths.iter().map(first).collect()
    }

    /// All paths, in axum's form.
    #[cfg(test)]
    pub(super) fn paths(&self) -> &[String] {
        &self.paths
    }

    /// The router; its paths lie below this one. Each answer knows its route.
    pub(super) fn into_router(self, below: &'static str) -> Router<App<B>> {
        let note = move |matched: MatchedPath, request: Request, next: Next| async move {
            let mut response = next.run(request).await;
            response.extensions_mut().insert(Route { below, matched });
            response
        };
        self.router.route_layer(middleware::from_fn(note))
    }
}
