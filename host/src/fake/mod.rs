//! Behaving fakes of the machine, for laws and whole-system tests without a kernel.
