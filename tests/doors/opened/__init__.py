"""An app whose tasks are open to the JSON API, for the tests that ask it over the network."""
