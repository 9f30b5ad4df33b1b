"""Building blocks of operators: scalar expressions, bodies of standard operators, arithmetic on shapes, samples."""
