"""Messages of tei.v1 <-> domain types: a group with equal options is read, one reply each is written."""
