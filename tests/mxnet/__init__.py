"""Cases of MXNet's operators, and the answers of a real MXNet 1.9.1 to them."""
