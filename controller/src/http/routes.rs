//! Routes that know their paths: axum's router does not tell what it has, and two things must know it, where a project
//! ends in an address and a collection begins, and the API's description.
//!
//! What must never happen here: a route that is served and not known.

use std::collections::BTreeSet;

use axum::Router;
use axum::routing::MethodRouter;

use super::App;
use super::backend::Backend;

/// A part of an API.
pub(super) struct Routes<B> {
    router: Router<App<B>>,
    paths: Vec<String>,
}

impl<B: Backend> Routes<B> {
    pub(super) fn new() -> Self {
        Self { router: Router::new(), paths: Vec::new() }
    }

    /// As axum's.
    pub(super) fn route(mut self, path: &str, methods: MethodRouter<App<B>>) -> Self {
        self.paths.push(path.to_owned());
        self.router = self.router.route(path, methods);
        self
    }

    /// As axum's.
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

    /// All paths, in axum's words.
    #[cfg(test)]
    pub(super) fn paths(&self) -> &[String] {
        &self.paths
    }

    pub(super) fn into_router(self) -> Router<App<B>> {
        self.router
    }
}
