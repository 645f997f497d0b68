"""Public messages <-> domain types. Presence and open enums are settled here; protobuf goes no further."""
