"""Tables in time: low-rank factors and series that change slowly."""
