//! Parses vital product data pages of a SCSI disk, as a fresh INQUIRY brings them (SPC-4, 7.8): the
//! identity that a disk claims.
//!
//! What must never happen here: a panic on any bytes; an identity taken from a designator of the
//! target port instead of the logical unit.

use mooring_model::Naa;

/// Page code of device identification.
pub const PAGE_IDENTIFICATION: u8 = 0x83;
/// Page code of the unit serial number.
pub const PAGE_SERIAL: u8 = 0x80;

/// Bytes before the body of a page: peripheral byte, page code, two bytes of length.
const HEADER_BYTES: usize = 4;
/// Association of a designator: the logical unit (not the target port, not the target device).
const ASSOCIATION_UNIT: u8 = 0;
/// Designator type NAA.
const TYPE_NAA: u8 = 3;
/// Code set: binary.
const CODE_BINARY: u8 = 1;

/// Returns the body of a page; `None` if these bytes are another page. A length beyond the bytes is
/// shortened: some targets state more than they were asked to send.
fn body(bytes: &[u8], page: u8) -> Option<&[u8]> {
    if bytes.len() < HEADER_BYTES || bytes[1] != page {
        return None;
    }
    let length = usize::from(u16::from_be_bytes([bytes[2], bytes[3]]));
    Some(&bytes[HEADER_BYTES..bytes.len().min(HEADER_BYTES + length)])
}

/// Returns the NAA identifier of the logical unit (type 6, 16 bytes) in page 0x83. `None` if it is
/// another page, cut short, or without such a designator.
pub fn naa_of_page83(bytes: &[u8]) -> Option<Naa> {
    let mut rest = body(bytes, PAGE_IDENTIFICATION)?;
    while let [codes, kind, _, length, tail @ ..] = rest {
        let length = usize::from(*length);
        let designator = tail.get(..length)?;
        let (association, designator_type) = ((kind >> 4) & 0x3, kind & 0xf);
        if association == ASSOCIATION_UNIT
            && designator_type == TYPE_NAA
            && codes & 0xf == CODE_BINARY
            && designator.len() == 16
        {
            let hex = designator.iter().fold(String::with_capacity(32), |mut hex, byte| {
                use std::fmt::Write as _;
                // Writing to a String cannot fail.
                let _ = write!(hex, "{byte:02x}");
                hex
            });
            if let Some(naa) = Naa::from_hex(&hex) {
                return Some(naa);
            }
        }
        rest = &tail[length..];
    }
    None
}

/// Returns the unit serial number in page 0x80, without the blanks and NULs around it. `None` if it
/// is another page, empty, or not ASCII.
pub fn serial_of_page80(bytes: &[u8]) -> Option<String> {
    let text = std::str::from_utf8(body(bytes, PAGE_SERIAL)?).ok()?;
    let text = text.trim_matches(|c: char| c == ' ' || c == '\0');
    (!text.is_empty() && text.bytes().all(|b| b.is_ascii_graphic() || b == b' ')).then(|| text.to_owned())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Builds page 0x83 as LIO sends it: NAA, T10 vendor id, then the relative port.
    fn page83(naa: [u8; 16]) -> Vec<u8> {
        let mut body = vec![0x01, 0x03, 0, 16];
        body.extend(naa);
        body.extend([0x02, 0x01, 0, 12]);
        body.extend(b"LIO-ORG vol1");
        body.extend([0x51, 0x94, 0, 4, 0, 0, 0, 1]);
        page(PAGE_IDENTIFICATION, &body)
    }

    fn page(code: u8, body: &[u8]) -> Vec<u8> {
        let [high, low] = u16::try_from(body.len()).unwrap().to_be_bytes();
        [&[0, code, high, low], body].concat()
    }

    const NAA: [u8; 16] =
        [0x60, 0x01, 0x40, 0x5a, 0, 0, 0, 0x01, 0x11, 0x14, 0x22, 0x28, 0x33, 0x34, 0x44, 0x44];

    #[test]
    fn the_naa_of_the_unit_is_found() {
        let want = Naa::from_hex("6001405a000000011114222833344444").unwrap();
        assert_eq!(naa_of_page83(&page83(NAA)), Some(want.clone()));
        // The port's NAA stands first and is not taken.
        let mut body = vec![0x51, 0x93, 0, 16];
        body.extend([0x60; 16]);
        body.extend([0x01, 0x03, 0, 8]);
        body.extend([0x50; 8]);
        body.extend([0x01, 0x03, 0, 16]);
        body.extend(NAA);
        assert_eq!(naa_of_page83(&page(PAGE_IDENTIFICATION, &body)), Some(want.clone()));
        // Bytes behind the page do not count; a length beyond the bytes does not matter.
        assert_eq!(naa_of_page83(&[page83(NAA), vec![1, 3, 0, 16]].concat()), Some(want.clone()));
        let mut longer = page83(NAA);
        longer[3] = 0xff;
        assert_eq!(naa_of_page83(&longer), Some(want));
    }

    #[test]
    fn what_is_no_identity_is_none() {
        let whole = page83(NAA);
        for cut in 0..24 {
            assert_eq!(naa_of_page83(&whole[..cut]), None, "{cut}");
        }
        let mut other = NAA;
        other[0] = 0x50;
        assert_eq!(naa_of_page83(&page83(other)), None);
        assert_eq!(naa_of_page83(&page(PAGE_SERIAL, b"serial")), None);
        assert_eq!(naa_of_page83(&page(PAGE_IDENTIFICATION, &[])), None);
    }

    #[test]
    fn serials() {
        assert_eq!(serial_of_page80(&page(PAGE_SERIAL, b" a000-1111\0")), Some("a000-1111".into()));
        for wrong in
            [page(PAGE_SERIAL, b""), page(PAGE_SERIAL, b"  \0"), page(PAGE_SERIAL, b"\xff\xfe"), vec![0; 3]]
        {
            assert_eq!(serial_of_page80(&wrong), None, "{wrong:?}");
        }
        assert_eq!(serial_of_page80(&page83(NAA)), None);
    }

    proptest! {
        #[test]
        fn any_bytes_are_taken(bytes: Vec<u8>) {
            for page in [PAGE_IDENTIFICATION, PAGE_SERIAL] {
                let mut page_of = bytes.clone();
                if page_of.len() > 1 {
                    page_of[1] = page;
                }
                let _ = (naa_of_page83(&page_of), serial_of_page80(&page_of));
            }
        }
    }
}
