//! The long work of an agent in memory. What must never happen here: another volume's job.

use mooring_api::v1;
use tonic::{Code, Status};

use super::cured;

#[derive(Default)]
pub(crate) struct Jobs {
    /// The jobs at work.
    pub(crate) now: Vec<v1::Job>,
    /// The limit, in bytes per second. 0: no limit.
    pub(crate) limit: u64,
    /// `true`: an older agent, which does not know jobs.
    pub(crate) unknown: bool,
}

impl Jobs {
    pub(super) fn answer(&self, asked: &v1::ListJobsRequest) -> Result<v1::ListJobsResponse, Status> {
        if self.unknown {
            return Err(Status::unimplemented("it does not know this call"));
        }
        let meant = |job: &&v1::Job| asked.volume_id.is_empty() || job.volume_id == asked.volume_id;
        let jobs = self.now.iter().filter(meant).cloned().collect();
        Ok(v1::ListJobsResponse { jobs, limit_bytes: self.limit })
    }

    /// Sets the limit, for the cluster to which the agent is pinned, if it is.
    pub(super) fn limit(
        &mut self,
        set: v1::SetJobLimitRequest,
        cluster: &str,
    ) -> Result<v1::SetJobLimitResponse, Status> {
        assert!(cluster.is_empty() || set.sender.unwrap().cluster_id == cluster);
        if set.limit_bytes == 1 {
            return Err(cured(Code::InvalidArgument, "limit_bytes: too little", "fix_spec"));
        }
        Ok(v1::SetJobLimitResponse { was_bytes: std::mem::replace(&mut self.limit, set.limit_bytes) })
    }
}
