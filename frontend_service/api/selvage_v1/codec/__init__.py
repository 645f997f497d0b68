"""Messages of selvage.v1 <-> domain types. Field presence and open enums are resolved here; protobuf ends here."""
