"""The command line, one module per verb: parse, build, call one function, print."""
