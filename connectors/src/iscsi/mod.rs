//! The iSCSI protocol of an initiator, without I/O: PDUs, text keys, negotiation, CHAP, login and logout.
