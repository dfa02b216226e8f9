//! Negotiated values: the result of every answer to every offer, key by key.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

use mooring_connectors::iscsi::{Key, Negotiation, NegotiationError, Text, TransferParameters};

fn after(answers: &[(Key, &str)]) -> Result<TransferParameters, NegotiationError> {
    let mut negotiation = Negotiation::default();
    for (key, value) in answers {
        negotiation.answer(*key, value)?;
    }
    negotiation.finish()
}

/// Returns the agreed value of one key, as the kernel would get it.
fn value(key: Key, agreed: &TransferParameters) -> Option<u32> {
    Some(match key {
        Key::HeaderDigest => agreed.header_digest.into(),
        Key::DataDigest => agreed.data_digest.into(),
        Key::DefaultTime2Wait => agreed.time2wait,
        Key::DefaultTime2Retain => agreed.time2retain,
        Key::ErrorRecoveryLevel => agreed.error_recovery_level,
        Key::InitialR2T => agreed.initial_r2t.into(),
        Key::ImmediateData => agreed.immediate_data.into(),
        Key::MaxBurstLength => agreed.max_burst,
        Key::FirstBurstLength => agreed.first_burst,
        Key::MaxOutstandingR2T => agreed.max_outstanding_r2t,
        Key::DataPDUInOrder => agreed.pdu_in_order.into(),
        Key::DataSequenceInOrder => agreed.sequence_in_order.into(),
        Key::MaxRecvDataSegmentLength => agreed.max_xmit_segment,
        Key::IFMarker | Key::OFMarker | Key::MaxConnections => return None,
    })
}

#[test]
fn every_key_is_offered_once_and_known_by_its_name() {
    let mut text = Text::new();
    Negotiation::offer(&mut text);
    let names: Vec<_> = text.iter().map(|(name, _)| name).collect();
    assert_eq!(names, Key::ALL.map(Key::name));
    assert_eq!(Text::parse(&text.encode()), Ok(text));
    for (at, key) in Key::ALL.into_iter().enumerate() {
        assert_eq!((Key::of_name(key.name()), key as usize), (Some(key), at));
    }
    assert_eq!(Key::of_name("headerdigest"), None);
}

#[test]
fn answers() {
    // Key, offer, answer, result. `None` if the answer is refused.
    const TABLE: &[(Key, &str, &str, Option<u32>)] = &[
        (Key::HeaderDigest, "None,CRC32C", "None", Some(0)),
        (Key::HeaderDigest, "None,CRC32C", "CRC32C", Some(1)),
        (Key::HeaderDigest, "None,CRC32C", "crc32c", None),
        (Key::HeaderDigest, "None,CRC32C", "Reject", None),
        (Key::DataDigest, "None,CRC32C", "CRC32C", Some(1)),
        (Key::DataDigest, "None,CRC32C", "CRC32C,None", None),
        (Key::DefaultTime2Wait, "2", "2", Some(2)),
        (Key::DefaultTime2Wait, "2", "3600", Some(3600)),
        (Key::DefaultTime2Wait, "2", "3601", None),
        (Key::DefaultTime2Wait, "2", "0", None),
        (Key::DefaultTime2Retain, "0", "0", Some(0)),
        (Key::DefaultTime2Retain, "0", "20", None),
        (Key::ErrorRecoveryLevel, "0", "0", Some(0)),
        (Key::ErrorRecoveryLevel, "0", "2", None),
        (Key::InitialR2T, "No", "No", Some(0)),
        (Key::InitialR2T, "No", "Yes", Some(1)),
        (Key::InitialR2T, "No", "yes", None),
        (Key::InitialR2T, "No", "", None),
        (Key::ImmediateData, "Yes", "Yes", Some(1)),
        (Key::ImmediateData, "Yes", "No", Some(0)),
        (Key::ImmediateData, "Yes", "1", None),
        (Key::MaxBurstLength, "16776192", "16776192", Some(16_776_192)),
        (Key::MaxBurstLength, "16776192", "262144", Some(262_144)),
        (Key::MaxBurstLength, "16776192", "0x40000", Some(262_144)),
        (Key::MaxBurstLength, "16776192", "16777215", None),
        (Key::MaxBurstLength, "16776192", "511", None),
        (Key::MaxBurstLength, "16776192", "-1", None),
        (Key::MaxBurstLength, "16776192", "+1024", None),
        (Key::MaxBurstLength, "16776192", "99999999999", None),
        (Key::MaxBurstLength, "16776192", "", None),
        (Key::MaxBurstLength, "16776192", "0x", None),
        (Key::FirstBurstLength, "262144", "262144", Some(262_144)),
        (Key::FirstBurstLength, "262144", "512", Some(512)),
        (Key::FirstBurstLength, "262144", "262145", None),
        (Key::MaxOutstandingR2T, "1", "1", Some(1)),
        (Key::MaxOutstandingR2T, "1", "0", None),
        (Key::MaxOutstandingR2T, "1", "2", None),
        (Key::DataPDUInOrder, "Yes", "Yes", Some(1)),
        (Key::DataPDUInOrder, "Yes", "No", None),
        (Key::DataSequenceInOrder, "Yes", "No", None),
        (Key::MaxRecvDataSegmentLength, "262144", "8192", Some(8192)),
        (Key::MaxRecvDataSegmentLength, "262144", "16777215", Some(16_777_215)),
        (Key::MaxRecvDataSegmentLength, "262144", "16777216", None),
        (Key::MaxRecvDataSegmentLength, "262144", "0", None),
    ];
    for (key, offer, answer, want) in TABLE {
        assert_eq!(key.offer(), *offer);
        // The burst has the largest size, so that the first burst alone is judged.
        let mut answers = vec![(*key, *answer)];
        if *key == Key::FirstBurstLength {
            answers.push((Key::MaxBurstLength, "16776192"));
        }
        let got = after(&answers);
        assert_eq!(
            got.clone().ok().map(|agreed| value(*key, &agreed).unwrap()),
            *want,
            "{key:?}={answer}: {got:?}"
        );
        if let Err(error) = got {
            assert!(error.to_string().contains(&format!("{}={answer:?}", key.name())), "{error}");
        }
    }
    for key in [Key::IFMarker, Key::OFMarker] {
        assert!(after(&[(key, "No")]).is_ok() && after(&[(key, "Reject")]).is_ok());
        assert!(after(&[(key, "Yes")]).is_err() && after(&[(key, "1")]).is_err());
    }
    assert!(after(&[(Key::MaxConnections, "1")]).is_ok() && after(&[(Key::MaxConnections, "2")]).is_err());
}

#[test]
fn words_that_are_no_values() {
    let silent = after(&[]).unwrap();
    let defaults = TransferParameters {
        header_digest: false,
        data_digest: false,
        time2wait: 2,
        time2retain: 0,
        error_recovery_level: 0,
        initial_r2t: true,
        immediate_data: true,
        max_burst: 262_144,
        first_burst: 65_536,
        max_outstanding_r2t: 1,
        pdu_in_order: true,
        sequence_in_order: true,
        max_recv_segment: 262_144,
        max_xmit_segment: 8192,
    };
    assert_eq!(silent, defaults);
    for key in Key::ALL {
        for word in ["NotUnderstood", "Irrelevant"] {
            assert_eq!(after(&[(key, word)]), Ok(silent), "{key:?}={word}");
        }
        let rejected = after(&[(key, "Reject")]);
        assert_eq!(rejected.is_ok(), matches!(key, Key::IFMarker | Key::OFMarker), "{key:?}");
        for first in ["Irrelevant", key.offer().split(',').next().unwrap()] {
            let twice = after(&[(key, first), (key, first)]).unwrap_err();
            assert_eq!(twice.why, "it was answered before", "{key:?}");
        }
    }
}

#[test]
fn a_first_burst_is_never_longer_than_a_burst() {
    let error = after(&[(Key::MaxBurstLength, "512"), (Key::FirstBurstLength, "513")]).unwrap_err();
    assert_eq!(error.why, "it is more than MaxBurstLength");
    let agreed = after(&[(Key::MaxBurstLength, "512"), (Key::FirstBurstLength, "512")]).unwrap();
    assert_eq!((agreed.max_burst, agreed.first_burst), (512, 512));
    for first in [vec![], vec![(Key::FirstBurstLength, "Irrelevant")]] {
        let answers = [vec![(Key::MaxBurstLength, "8192")], first].concat();
        assert_eq!(after(&answers).unwrap().first_burst, 8192, "the default follows the burst");
    }
}
