"""The usage ledger: one line for each amount of tokens or of device time that an organization has used."""
