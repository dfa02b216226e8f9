//! `mooring volume rotate-secrets`: gives attachments new secrets while they are in use.
//!
//! What must never happen here: a second rotation begun because the answer to the first was late.

use std::fmt::{self, Display, Formatter};

use serde::Serialize;
use serde_json::{Map, Value};

use crate::args::RotateArgs;
use crate::controller::Client;
use crate::controller::attachment;
use crate::controller::client::Call;
use crate::controller::records::Attachments;
use crate::controller::volume::find;
use crate::error::Failure;
use crate::output::Reply;
use crate::table::named;
use crate::text::one_line;

/// `volume rotate-secrets`.
#[derive(Debug, Serialize)]
pub(crate) struct SecretsRotated {
    /// `true`: the targets accept only the new secrets.
    done: bool,
    volume_id: String,
    name: Option<String>,
    /// The rotated attachments; during the rotation, those that it waits for.
    #[serde(flatten)]
    of: Attachments,
}

impl Display for SecretsRotated {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let volume = named(self.name.as_deref(), &self.volume_id);
        if self.done {
            write!(f, "volume {volume}: new secrets; the old ones are no longer valid")?;
        } else {
            write!(
                f,
                "volume {volume}: accepted; until it is done, both secrets are good for a host that logs in again. It goes on by itself: look \
                 with `mooring attachment show`"
            )?;
        }
        for live in &self.of.attachments {
            let host = one_line(live.host.as_deref().unwrap_or("a client"));
            write!(f, "\n  {}  {host}  {}", live.id, one_line(&live.secret_text()))?;
        }
        Ok(())
    }
}

/// `volume rotate-secrets`. A late answer is not repeated: that could rotate twice.
pub(crate) async fn rotate(client: &Client, args: &RotateArgs) -> Result<Reply<SecretsRotated>, Failure> {
    let found = find(client, &args.volume).await?;
    let mut body = Map::new();
    if let Some(id) = &args.attachment {
        body.insert("attachment".to_owned(), id.to_string().into());
    }
    if args.force {
        body.insert("force".to_owned(), true.into());
    }
    let path = ["mooring", "v1", "volumes", &found.id, "rotate-secrets"];
    let call = Call::add("the rotation of secrets", &path, Value::Object(body)).waiting();
    let (done, of) = match client.read::<Attachments>(call).await {
        Ok(of) => (true, of),
        Err(fault) if fault.status() == Some(504) => {
            let lost = |fault| Failure::lost(format!("the rotation of volume {}", found.id), fault);
            let mut attachments = attachment::of_volume(client, Some(&found.id)).await.map_err(lost)?;
            attachments.retain(|live| live.secret_rotation.is_some());
            (attachments.is_empty(), Attachments { attachments })
        }
        Err(fault) => return Err(fault.into()),
    };
    let answer = SecretsRotated { done, volume_id: found.id, name: found.name, of };
    Ok(Reply::when(done, answer))
}
