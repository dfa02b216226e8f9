//! Handles to the store that allow less than all of it.
//!
//! What must never happen here: a change that is kept although the lease that its work relies on is
//! over.

use std::ops::Deref;

use super::leases::Fence;
use super::{Abort, Db, Store};
use crate::error::Refusal;
use mooring_model::ClusterId;

/// The store, for work at an agent: with the lease that the work relies on. A change is kept only
/// while that lease is ours.
#[derive(Debug, Clone)]
pub(crate) struct FencedStore {
    reads: ReadStore,
    /// `None`: no lease decides who does this work.
    fence: Option<Fence>,
}

/// The store, for those who only read.
#[derive(Debug, Clone)]
pub(crate) struct ReadStore(Store);

impl Store {
    /// Returns a handle for work that relies on this lease. `None`: on no lease.
    pub(crate) fn fenced(&self, fence: Option<Fence>) -> FencedStore {
        FencedStore { reads: self.read_only(), fence }
    }

    /// Returns a handle that only reads.
    pub(crate) fn read_only(&self) -> ReadStore {
        ReadStore(self.clone())
    }
}

impl Deref for FencedStore {
    type Target = ReadStore;

    fn deref(&self) -> &ReadStore {
        &self.reads
    }
}

impl FencedStore {
    /// As [`Store::write`].
    pub(crate) async fn write<T: Send + 'static>(
        &self,
        op: &'static str,
        work: impl Fn(&Db<'_>) -> Result<T, Abort> + Send + 'static,
    ) -> Result<T, Refusal> {
        self.reads.0.write_fenced(op, self.fence.clone(), work).await
    }

    /// As [`Store::write_soon`].
    pub(crate) async fn write_soon<T: Send + 'static>(
        &self,
        op: &'static str,
        work: impl Fn(&Db<'_>) -> Result<T, Abort> + Send + 'static,
    ) -> Result<T, Refusal> {
        self.reads.0.write_soon_fenced(op, self.fence.clone(), work).await
    }
}

impl ReadStore {
    /// As [`Store::read_one`].
    pub(crate) async fn read_one<T: Send + 'static>(
        &self,
        op: &'static str,
        work: impl FnOnce(&Db<'_>) -> Result<T, Abort> + Send + 'static,
    ) -> Result<T, Refusal> {
        self.0.read_one(op, work).await
    }

    /// As [`Store::read`].
    pub(crate) async fn read<T: Send + 'static>(
        &self,
        op: &'static str,
        work: impl FnOnce(&Db<'_>) -> Result<T, Abort> + Send + 'static,
    ) -> Result<T, Refusal> {
        self.0.read(op, work).await
    }

    /// The cluster's id.
    pub(crate) fn cluster(&self) -> ClusterId {
        self.0.cluster()
    }

    /// Returns `true` if several controllers may share the database.
    pub(crate) fn is_shared(&self) -> bool {
        self.0.dialer().is_some()
    }
}
