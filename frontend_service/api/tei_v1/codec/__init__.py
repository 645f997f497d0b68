"""Messages of tei.v1 <-> domain types. What is read are messages of equal options, what is written one reply each."""
