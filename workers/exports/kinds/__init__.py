"""One module for each kind of speculator, with the rules that recognise, check and write the kind's artifacts."""
