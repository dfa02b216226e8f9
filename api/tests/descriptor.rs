//! The wire never breaks: what was released is compared with what this build speaks. Adding is
//! fine; taking away, renumbering, retyping, renaming and moving is not.
//!
//! `api/proto/mooring.v1.released.binpb` is the descriptor of the last release. It is replaced at a
//! release, by a copy of `mooring.v1.binpb`, and at no other time: a test that fails here is cured
//! in the .proto file.

#![allow(clippy::unwrap_used, reason = "a test may")]

use std::collections::BTreeMap;

use prost::Message;
use prost_types::field_descriptor_proto::{Label, Type};
use prost_types::{
    DescriptorProto, EnumDescriptorProto, FieldDescriptorProto, FileDescriptorSet, MethodDescriptorProto,
};

const RELEASED: &[u8] = include_bytes!("../proto/mooring.v1.released.binpb");

/// All messages, enums and calls of a descriptor, by full name.
#[derive(Default)]
struct Wire {
    messages: BTreeMap<String, DescriptorProto>,
    enums: BTreeMap<String, EnumDescriptorProto>,
    calls: BTreeMap<String, MethodDescriptorProto>,
}

impl Wire {
    fn of(set: &FileDescriptorSet) -> Self {
        let mut wire = Self::default();
        for file in &set.file {
            let package = file.package();
            file.message_type.iter().for_each(|message| wire.add_message(package, message));
            file.enum_type.iter().for_each(|item| wire.add_enum(package, item));
            for service in &file.service {
                for call in &service.method {
                    let name = format!("{package}.{}/{}", service.name(), call.name());
                    wire.calls.insert(name, call.clone());
                }
            }
        }
        wire
    }

    fn add_message(&mut self, scope: &str, message: &DescriptorProto) {
        let name = format!("{scope}.{}", message.name());
        message.nested_type.iter().for_each(|nested| self.add_message(&name, nested));
        message.enum_type.iter().for_each(|item| self.add_enum(&name, item));
        self.messages.insert(name, message.clone());
    }

    fn add_enum(&mut self, scope: &str, item: &EnumDescriptorProto) {
        self.enums.insert(format!("{scope}.{}", item.name()), item.clone());
    }
}

/// Changes that break a peer of the old descriptor.
fn breaks(old: &FileDescriptorSet, new: &FileDescriptorSet) -> Vec<String> {
    let (old, new) = (Wire::of(old), Wire::of(new));
    let mut found = Vec::new();
    for (name, old) in &old.messages {
        match new.messages.get(name) {
            None => found.push(format!("{name}: the message was removed")),
            Some(new) => message_breaks(name, old, new, &mut found),
        }
    }
    for (name, old) in &old.enums {
        match new.enums.get(name) {
            None => found.push(format!("{name}: the enum was removed")),
            Some(new) => enum_breaks(name, old, new, &mut found),
        }
    }
    for (name, old) in &old.calls {
        match new.calls.get(name) {
            None => found.push(format!("{name}: the call was removed")),
            Some(new) => call_breaks(name, old, new, &mut found),
        }
    }
    found
}

fn message_breaks(name: &str, old: &DescriptorProto, new: &DescriptorProto, found: &mut Vec<String>) {
    for field in &old.field {
        let at = format!("{name}.{} = {}", field.name(), field.number());
        let same_number = new.field.iter().find(|other| other.number() == field.number());
        let same_name = new.field.iter().find(|other| other.name() == field.name());
        match (same_number, same_name) {
            (Some(other), _) if other.name() == field.name() => {
                field_breaks(&at, (old, field), (new, other), found);
            }
            (_, Some(other)) => found.push(format!("{at}: was renumbered to {}", other.number())),
            // The same number under another name may mean another thing: that is how data is
            // misread silently.
            (Some(other), None) => found.push(format!("{at}: its number is now {}", other.name())),
            (None, None) => found.push(format!("{at}: was removed")),
        }
    }
    for range in &old.reserved_range {
        if !new.reserved_range.iter().any(|kept| kept.start() <= range.start() && range.end() <= kept.end()) {
            found.push(format!("{name}: numbers {}..{} are no longer reserved", range.start(), range.end()));
        }
    }
}

type InMessage<'a> = (&'a DescriptorProto, &'a FieldDescriptorProto);

fn field_breaks(
    at: &str,
    (old_in, old): InMessage<'_>,
    (new_in, new): InMessage<'_>,
    found: &mut Vec<String>,
) {
    if (old.r#type(), old.type_name()) != (new.r#type(), new.type_name()) {
        found.push(format!(
            "{at}: was {:?}{}, is {:?}{}",
            old.r#type(),
            old.type_name(),
            new.r#type(),
            new.type_name()
        ));
    }
    let label = |field: &FieldDescriptorProto| (field.label(), field.proto3_optional());
    if label(old) != label(new) {
        found.push(format!("{at}: was {:?}, is {:?}", label(old), label(new)));
    }
    // Whoever sets one member of a oneof clears the others.
    let group = |message: &DescriptorProto, field: &FieldDescriptorProto| {
        let index = usize::try_from(field.oneof_index?).ok()?;
        message.oneof_decl.get(index).map(|oneof| oneof.name().to_owned())
    };
    if group(old_in, old) != group(new_in, new) {
        found.push(format!("{at}: was in oneof {:?}, is in {:?}", group(old_in, old), group(new_in, new)));
    }
}

fn enum_breaks(name: &str, old: &EnumDescriptorProto, new: &EnumDescriptorProto, found: &mut Vec<String>) {
    for value in &old.value {
        let kept =
            new.value.iter().any(|other| (other.number(), other.name()) == (value.number(), value.name()));
        if !kept {
            found.push(format!("{name}.{} = {}: was removed or changed", value.name(), value.number()));
        }
    }
}

fn call_breaks(
    name: &str,
    old: &MethodDescriptorProto,
    new: &MethodDescriptorProto,
    found: &mut Vec<String>,
) {
    if (old.input_type(), old.output_type()) != (new.input_type(), new.output_type()) {
        found.push(format!("{name}: takes or answers with another message"));
    }
    if (old.client_streaming(), old.server_streaming()) != (new.client_streaming(), new.server_streaming()) {
        found.push(format!("{name}: streams otherwise"));
    }
}

fn decode(bytes: &[u8]) -> FileDescriptorSet {
    FileDescriptorSet::decode(bytes).unwrap()
}

#[test]
fn what_was_released_still_works() {
    let found = breaks(&decode(RELEASED), &decode(mooring_api::DESCRIPTOR));
    assert!(found.is_empty(), "mooring.v1 would break peers of the last release:\n{}", found.join("\n"));
}

/// The other tests of this file mean nothing if the descriptors are empty.
#[test]
fn the_released_descriptor_is_the_wire() {
    let wire = Wire::of(&decode(RELEASED));
    for call in
        ["Hello", "PutVolume", "PutExport", "GetVolume", "ListVolumes", "GetCapabilities", "Plan", "Watch"]
    {
        assert!(wire.calls.contains_key(&format!("mooring.v1.Agent/{call}")), "{call}");
    }
    assert!(wire.messages.len() >= 35 && wire.enums.len() >= 5);
}

fn message<'a>(set: &'a mut FileDescriptorSet, name: &str) -> &'a mut DescriptorProto {
    set.file
        .iter_mut()
        .flat_map(|file| &mut file.message_type)
        .find(|message| message.name() == name)
        .unwrap()
}

fn field<'a>(set: &'a mut FileDescriptorSet, of: &str, name: &str) -> &'a mut FieldDescriptorProto {
    message(set, of).field.iter_mut().find(|field| field.name() == name).unwrap()
}

fn call<'a>(set: &'a mut FileDescriptorSet, name: &str) -> &'a mut MethodDescriptorProto {
    set.file
        .iter_mut()
        .flat_map(|file| &mut file.service)
        .flat_map(|service| &mut service.method)
        .find(|call| call.name() == name)
        .unwrap()
}

fn the_enum<'a>(set: &'a mut FileDescriptorSet, name: &str) -> &'a mut EnumDescriptorProto {
    set.file.iter_mut().flat_map(|file| &mut file.enum_type).find(|item| item.name() == name).unwrap()
}

/// Changes a copy of the released descriptor and says what the checker finds.
fn found_after(change: impl Fn(&mut FileDescriptorSet)) -> Vec<String> {
    let old = decode(RELEASED);
    let mut new = old.clone();
    change(&mut new);
    assert_ne!(old, new, "the change changes nothing");
    breaks(&old, &new)
}

/// The control: a checker that finds nothing proves nothing.
#[test]
fn every_kind_of_break_is_found() {
    type Change = fn(&mut FileDescriptorSet);
    let cases: &[(&str, Change)] = &[
        ("removed", |set| message(set, "Grant").field.retain(|field| field.name() != "chap")),
        ("renumbered to 77", |set| field(set, "Grant", "chap").number = Some(77)),
        ("its number is now chap2", |set| field(set, "Grant", "chap").name = Some("chap2".into())),
        // Two fields of one type that change places: the numbers stay in use.
        ("renumbered", |set| {
            field(set, "ChapSide", "user").number = Some(2);
            field(set, "ChapSide", "secret").number = Some(1);
        }),
        ("was Uint32, is Uint64", |set| field(set, "Grant", "lun").set_type(Type::Uint64)),
        (".mooring.v1.Mode, is Enum.mooring.v1.Cure", |set| {
            field(set, "Grant", "mode").type_name = Some(".mooring.v1.Cure".into());
        }),
        ("was (Repeated", |set| field(set, "Grant", "attachment_ids").set_label(Label::Optional)),
        ("is (Repeated", |set| field(set, "Grant", "lun").set_label(Label::Repeated)),
        ("was (Optional, true)", |set| {
            let zeroed = field(set, "VolumeReport", "zeroed_bytes");
            (zeroed.proto3_optional, zeroed.oneof_index) = (None, None);
        }),
        ("was in oneof Some(\"wish\")", |set| field(set, "PutExportRequest", "spec").oneof_index = None),
        ("mooring.v1.Receipt: the message was removed", |set| {
            set.file
                .iter_mut()
                .for_each(|file| file.message_type.retain(|message| message.name() != "Receipt"));
        }),
        ("mooring.v1.Cure: the enum was removed", |set| {
            set.file.iter_mut().for_each(|file| file.enum_type.retain(|item| item.name() != "Cure"));
        }),
        ("MODE_READ_ONLY = 1: was removed or changed", |set| {
            the_enum(set, "Mode").value.retain(|value| value.name() != "MODE_READ_ONLY");
        }),
        ("MODE_READ_WRITE = 2: was removed or changed", |set| {
            the_enum(set, "Mode").value[2].number = Some(3);
        }),
        ("Agent/Plan: the call was removed", |set| {
            let services = set.file.iter_mut().flat_map(|file| &mut file.service);
            services.for_each(|service| service.method.retain(|call| call.name() != "Plan"));
        }),
        ("Agent/Plan: takes or answers", |set| {
            call(set, "Plan").input_type = Some(".mooring.v1.WatchRequest".into());
        }),
        ("Agent/Plan: takes or answers", |set| {
            call(set, "Plan").output_type = Some(".mooring.v1.Report".into());
        }),
        ("Agent/Watch: streams otherwise", |set| call(set, "Watch").server_streaming = Some(false)),
        ("Agent/Plan: streams otherwise", |set| call(set, "Plan").client_streaming = Some(true)),
        ("the message was removed", |set| set.file[0].package = Some("mooring.v2".into())),
    ];
    for (says, change) in cases {
        let found = found_after(change);
        assert!(found.iter().any(|line| line.contains(says)), "{says:?} is not in {found:#?}");
    }
}

#[test]
fn a_number_stays_reserved() {
    use prost_types::descriptor_proto::ReservedRange;
    let mut old = decode(RELEASED);
    message(&mut old, "Grant").reserved_range.push(ReservedRange { start: Some(50), end: Some(51) });
    let mut wider = old.clone();
    message(&mut wider, "Grant").reserved_range[0].end = Some(60);
    assert!(breaks(&old, &wider).is_empty());
    assert_eq!(breaks(&old, &decode(RELEASED)), ["mooring.v1.Grant: numbers 50..51 are no longer reserved"]);
}

#[test]
fn adding_breaks_nothing() {
    let new_field = |name: &str, number| FieldDescriptorProto {
        name: Some(name.into()),
        number: Some(number),
        label: Some(Label::Optional.into()),
        r#type: Some(Type::String.into()),
        ..Default::default()
    };
    let found = found_after(|set| {
        message(set, "Grant").field.push(new_field("note", 78));
        the_enum(set, "Mode").value.push(prost_types::EnumValueDescriptorProto {
            name: Some("MODE_APPEND".into()),
            number: Some(9),
            options: None,
        });
        let extra = DescriptorProto { name: Some("Extra".into()), ..Default::default() };
        set.file[0].message_type.push(extra);
        let mut more = call(set, "Plan").clone();
        more.name = Some("More".into());
        set.file[0].service[0].method.push(more);
        // A member that joins a oneof.
        let mut wish = new_field("other", 79);
        wish.oneof_index = Some(0);
        message(set, "PutExportRequest").field.push(wish);
    });
    assert!(found.is_empty(), "{found:#?}");
}
