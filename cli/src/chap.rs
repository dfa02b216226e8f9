//! CHAP credentials of a command line, checked by the model's rule.
//!
//! What must never happen here: a secret in an error.

use mooring_model::{Chap, ChapSide, ExportIdentity, ExportSpec, Grant, VolumeId};

use crate::args::GrantArgs;
use crate::error::Failure;
use crate::secret::SecretSource;

/// Reads the credentials that a command line names, and checks them by the model's rule. `None`: it
/// names none.
pub(crate) fn read(args: &GrantArgs) -> Result<Option<Chap>, Failure> {
    let (Some(user), Some(source)) = (&args.chap_user, &args.chap_secret_file) else { return Ok(None) };
    if args.chap_secret_file == args.mutual_secret_file && *source == SecretSource::Stdin {
        return Err(Failure::Usage(
            "standard input (-) holds one secret only: put the other into a file".into(),
        ));
    }
    let mutual = match (&args.mutual_user, &args.mutual_secret_file) {
        (Some(user), Some(source)) => Some(ChapSide { user: user.clone(), secret: source.read()? }),
        _ => None,
    };
    let chap = Chap { initiator: ChapSide { user: user.clone(), secret: source.read()? }, mutual };
    check(args, &chap)?;
    Ok(Some(chap))
}

fn check(args: &GrantArgs, chap: &Chap) -> Result<(), Failure> {
    let grant = Grant {
        initiator: args.initiator.clone(),
        lun: mooring_model::LUN_DEFAULT,
        mode: args.mode,
        chap: Some(chap.clone()),
        attachments: Vec::new(),
        barrier: None,
    };
    let alone = ExportSpec {
        volume: VolumeId::from_u128(0),
        identity: ExportIdentity::Derived,
        portals: Vec::new(),
        grants: vec![grant],
        fc: mooring_model::FcExportSpec::default(),
        tuning: mooring_model::Tuning::default(),
    };
    alone.check().map_err(|error| {
        let option = match error.field.strip_prefix("grants[0].chap").unwrap_or_default() {
            ".user" => "--chap-user",
            ".secret" => "--chap-secret-file",
            ".mutual.user" => "--mutual-user",
            ".mutual.secret" => "--mutual-secret-file",
            ".mutual" => "--mutual-user or its secret",
            _ => "--chap-user or its secret",
        };
        Failure::Usage(format!("{option}: {}", error.why))
    })
}
