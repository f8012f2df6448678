"""Methods for bilevel problems."""
