//! Client of the Network Block Device protocol, as far as reading and writing go (the protocol's
//! `doc/proto.md`: fixed newstyle handshake, `NBD_OPT_GO`, simple replies).
//!
//! What must never happen here: a length of the server's that decides how much is kept; an answer
//! to one request taken for another's.

use std::io::{Read, Write};

use super::ImageError;

const MAGIC: u64 = 0x4e42_444d_4147_4943;
const OPTION_MAGIC: u64 = 0x4948_4156_454f_5054;
const REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;
const REQUEST_MAGIC: u32 = 0x2560_9513;
const SIMPLE_REPLY_MAGIC: u32 = 0x6744_6698;

const FIXED_NEWSTYLE: u16 = 1;
const NO_ZEROES: u16 = 2;
const OPTION_GO: u32 = 7;
const REPLY_ACK: u32 = 1;
const REPLY_INFO: u32 = 3;
const INFO_EXPORT: u16 = 0;

/// The server's flag of an export that cannot be written.
const READ_ONLY: u16 = 2;

/// Commands.
const READ: u16 = 0;
const WRITE: u16 = 1;
const DISCONNECT: u16 = 2;
const FLUSH: u16 = 3;

/// Maximum bytes of one answer to an option, and maximum number of answers: a server's description
/// of itself is short.
const OPTION_BYTES_MAX: usize = 4096;
const OPTION_REPLIES_MAX: usize = 16;

/// A connection for requests on blocks.
pub(super) struct Client<S> {
    stream: S,
    size: u64,
    read_only: bool,
    requests: u64,
}

fn bytes<const N: usize>(stream: &mut impl Read) -> Result<[u8; N], ImageError> {
    let mut buffer = [0; N];
    stream.read_exact(&mut buffer).map_err(ImageError::Read)?;
    Ok(buffer)
}

fn u16_of(stream: &mut impl Read) -> Result<u16, ImageError> {
    bytes(stream).map(u16::from_be_bytes)
}

fn u32_of(stream: &mut impl Read) -> Result<u32, ImageError> {
    bytes(stream).map(u32::from_be_bytes)
}

fn u64_of(stream: &mut impl Read) -> Result<u64, ImageError> {
    bytes(stream).map(u64::from_be_bytes)
}

impl<S: Read + Write> Client<S> {
    /// Agrees with the server on its export without a name.
    pub(super) fn connect(mut stream: S) -> Result<Self, ImageError> {
        if u64_of(&mut stream)? != MAGIC || u64_of(&mut stream)? != OPTION_MAGIC {
            return Err(ImageError::Answer("it is no NBD server of today"));
        }
        let flags = u16_of(&mut stream)?;
        if flags & FIXED_NEWSTYLE == 0 {
            return Err(ImageError::Answer("it does not answer options"));
        }
        let ours = u32::from(flags & (FIXED_NEWSTYLE | NO_ZEROES));
        let mut hello = ours.to_be_bytes().to_vec();
        hello.extend(OPTION_MAGIC.to_be_bytes());
        hello.extend(OPTION_GO.to_be_bytes());
        // A name of no bytes, and no request for further information.
        hello.extend([0, 0, 0, 6, 0, 0, 0, 0, 0, 0]);
        stream.write_all(&hello).map_err(ImageError::Read)?;
        let (size, flags) = Self::agreed(&mut stream)?;
        Ok(Self { stream, size, read_only: flags & READ_ONLY != 0, requests: 0 })
    }

    /// Reads the size of the export and its flags, once the server agrees.
    fn agreed(stream: &mut S) -> Result<(u64, u16), ImageError> {
        let mut size = None;
        for _ in 0..OPTION_REPLIES_MAX {
            if u64_of(stream)? != REPLY_MAGIC || u32_of(stream)? != OPTION_GO {
                return Err(ImageError::Answer("an answer to no option"));
            }
            let (kind, length) = (u32_of(stream)?, u32_of(stream)?);
            let length = usize::try_from(length).ok().filter(|length| *length <= OPTION_BYTES_MAX);
            let mut data = vec![0; length.ok_or(ImageError::Answer("a long answer to an option"))?];
            stream.read_exact(&mut data).map_err(ImageError::Read)?;
            match kind {
                REPLY_ACK => return size.ok_or(ImageError::Answer("no size")),
                REPLY_INFO if data.starts_with(&INFO_EXPORT.to_be_bytes()) => {
                    let number = data.get(2..10).and_then(|bytes| bytes.try_into().ok());
                    let flags = data.get(10..12).and_then(|bytes| bytes.try_into().ok());
                    let both = number.zip(flags).ok_or(ImageError::Answer("half a size"))?;
                    size = Some((u64::from_be_bytes(both.0), u16::from_be_bytes(both.1)));
                }
                REPLY_INFO => {}
                _ => return Err(ImageError::Answer("it has no such export")),
            }
        }
        Err(ImageError::Answer("answers without an end"))
    }

    pub(super) const fn size(&self) -> u64 {
        self.size
    }

    pub(super) const fn is_read_only(&self) -> bool {
        self.read_only
    }

    fn send(&mut self, command: u16, offset: u64, length: usize) -> Result<(), ImageError> {
        let length = u32::try_from(length).map_err(|_| ImageError::Answer("too much was asked for"))?;
        self.requests += 1;
        let mut request = REQUEST_MAGIC.to_be_bytes().to_vec();
        // Without flags.
        request.extend([0, 0]);
        request.extend(command.to_be_bytes());
        request.extend(self.requests.to_be_bytes());
        request.extend(offset.to_be_bytes());
        request.extend(length.to_be_bytes());
        self.stream.write_all(&request).map_err(ImageError::Read)
    }

    /// Reads the server's answer to the last request: 0, or an errno.
    fn answer(&mut self) -> Result<u32, ImageError> {
        let cookie = self.requests;
        if u32_of(&mut self.stream)? != SIMPLE_REPLY_MAGIC {
            return Err(ImageError::Answer("no reply"));
        }
        let errno = u32_of(&mut self.stream)?;
        if u64_of(&mut self.stream)? != cookie {
            return Err(ImageError::Answer("a reply to another request"));
        }
        Ok(errno)
    }

    /// Reads into the buffer from `offset`.
    pub(super) fn read(&mut self, offset: u64, buffer: &mut [u8]) -> Result<(), ImageError> {
        self.send(READ, offset, buffer.len())?;
        match self.answer()? {
            0 => self.stream.read_exact(buffer).map_err(ImageError::Read),
            errno => Err(ImageError::Damaged { offset, length: buffer.len(), errno }),
        }
    }

    fn put(&mut self, command: u16, offset: u64, bytes: &[u8]) -> Result<(), ImageError> {
        // A flush has no length.
        self.send(command, offset, bytes.len())?;
        self.stream.write_all(bytes).map_err(ImageError::Read)?;
        match self.answer()? {
            0 => Ok(()),
            errno => Err(ImageError::NotPut { offset, length: bytes.len(), errno }),
        }
    }

    /// Writes these bytes from `offset`.
    pub(super) fn write(&mut self, offset: u64, bytes: &[u8]) -> Result<(), ImageError> {
        self.put(WRITE, offset, bytes)
    }

    /// Makes the server bring all writes to the file.
    pub(super) fn flush(&mut self) -> Result<(), ImageError> {
        self.put(FLUSH, 0, &[])
    }

    /// Ends the connection. The server gives no answer to that.
    pub(super) fn disconnect(&mut self) -> Result<(), ImageError> {
        self.send(DISCONNECT, 0, 0)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Cursor;

    use super::*;

    /// A server with answers prepared in advance, which reads nothing.
    struct Said(Cursor<Vec<u8>>, Vec<u8>);

    impl Read for Said {
        fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
            self.0.read(buffer)
        }
    }

    impl Write for Said {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.1.extend(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    fn hello(flags: u16) -> Vec<u8> {
        [&MAGIC.to_be_bytes()[..], &OPTION_MAGIC.to_be_bytes(), &flags.to_be_bytes()].concat()
    }

    fn option(kind: u32, data: &[u8]) -> Vec<u8> {
        let length = u32::try_from(data.len()).unwrap();
        let head = [OPTION_GO, kind, length].map(u32::to_be_bytes).concat();
        [&REPLY_MAGIC.to_be_bytes()[..], &head, data].concat()
    }

    fn info(size: u64) -> Vec<u8> {
        option(REPLY_INFO, &[&INFO_EXPORT.to_be_bytes()[..], &size.to_be_bytes(), &[0, 1]].concat())
    }

    fn reply(errno: u32, cookie: u64, data: &[u8]) -> Vec<u8> {
        [&SIMPLE_REPLY_MAGIC.to_be_bytes()[..], &errno.to_be_bytes(), &cookie.to_be_bytes(), data].concat()
    }

    fn connect(parts: &[Vec<u8>]) -> Result<Client<Said>, ImageError> {
        Client::connect(Said(Cursor::new(parts.concat()), Vec::new()))
    }

    #[test]
    fn blocks_are_asked_for_one_request_after_another() {
        let good = [
            hello(3),
            option(REPLY_INFO, &[0, 3, 1, 2]),
            info(8192),
            option(REPLY_ACK, &[]),
            reply(0, 1, b"abcd"),
            reply(5, 2, b""),
        ];
        let mut client = connect(&good).unwrap();
        assert_eq!(client.size(), 8192);
        let mut buffer = [0; 4];
        client.read(512, &mut buffer).unwrap();
        assert_eq!(&buffer, b"abcd");
        let error = client.read(4096, &mut buffer).unwrap_err();
        assert!(matches!(error, ImageError::Damaged { offset: 4096, length: 4, errno: 5 }), "{error}");
        let sent = &client.stream.1;
        assert_eq!(sent[..4], [0, 0, 0, 3]);
        assert_eq!(sent[4 + 8 + 4 + 4 + 6..][..28].to_vec(), {
            let head =
                [&REQUEST_MAGIC.to_be_bytes()[..], &[0; 4], &1_u64.to_be_bytes(), &512_u64.to_be_bytes()];
            [head.concat(), 4_u32.to_be_bytes().to_vec()].concat()
        });
    }

    #[test]
    fn blocks_are_put_flushed_and_the_server_is_let_go() {
        let good = [hello(3), info(8192), option(REPLY_ACK, &[]), reply(0, 1, b""), reply(0, 2, b"")];
        let mut client = connect(&[good.concat(), reply(28, 3, b"")]).unwrap();
        assert!(!client.is_read_only());
        let before = client.stream.1.len();
        client.write(512, b"abcd").unwrap();
        client.flush().unwrap();
        let error = client.write(4096, b"efgh").unwrap_err();
        assert!(matches!(error, ImageError::NotPut { offset: 4096, length: 4, errno: 28 }), "{error}");
        client.disconnect().unwrap();
        let request = |command: u8, cookie: u64, offset: u64, bytes: &[u8]| {
            let mut all = [&REQUEST_MAGIC.to_be_bytes()[..], &[0, 0, 0, command]].concat();
            all.extend(cookie.to_be_bytes());
            all.extend(offset.to_be_bytes());
            all.extend(u32::try_from(bytes.len()).unwrap().to_be_bytes());
            [&all[..], bytes].concat()
        };
        let sent = [
            request(1, 1, 512, b"abcd"),
            request(3, 2, 0, b""),
            request(1, 3, 4096, b"efgh"),
            request(2, 4, 0, b""),
        ];
        assert_eq!(client.stream.1[before..], sent.concat());
        let read_only = option(REPLY_INFO, &[&[0, 0][..], &8_u64.to_be_bytes(), &[0, 3]].concat());
        assert!(connect(&[hello(3), read_only, option(REPLY_ACK, &[])]).unwrap().is_read_only());
    }

    #[test]
    fn another_answer_is_an_error() {
        let ack = || option(REPLY_ACK, &[]);
        for (bad, why) in [
            (vec![b"NBDMAGIC\0\0\0\0\0\0\0\0\0\0".to_vec()], "no NBD server"),
            (vec![hello(2)], "does not answer options"),
            (vec![hello(3), ack()], "no size"),
            (vec![hello(3), option(REPLY_INFO, &[0, 0, 1])], "half a size"),
            (vec![hello(3), option(0x8000_0006, &[])], "no such export"),
            (vec![hello(3), option(REPLY_INFO, &[9; OPTION_BYTES_MAX + 1])], "long answer"),
            (vec![hello(3), info(1).repeat(OPTION_REPLIES_MAX)], "without an end"),
        ] {
            let error = connect(&bad).err().unwrap().to_string();
            assert!(error.contains(why), "{error}");
        }
        assert!(matches!(connect(&[hello(3)]), Err(ImageError::Read(_))), "it has gone");
        let mut other = connect(&[hello(3), info(8), ack(), reply(0, 7, b"abcd")]).unwrap();
        assert!(other.read(0, &mut [0; 4]).unwrap_err().to_string().contains("another request"));
    }
}
