"""Networks of the literature as blocks of `mz.gluon`; `mz.models` lists and makes them."""
