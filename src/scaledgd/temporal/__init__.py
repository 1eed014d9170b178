"""Tables that know time: low-rank factors and series that change slowly."""
