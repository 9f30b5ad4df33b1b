"""The intermediate representation: typed graphs, type inference, differentiation, the interpreter."""
