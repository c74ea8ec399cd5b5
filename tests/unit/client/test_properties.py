"""Properties files, as Kafka's tools take them."""

from __future__ import annotations

from braidmq.client.properties import parse_properties


def test_names_and_values_are_parted_as_java_does_it() -> None:
    """S1: equals sign, colon or white space, with comments and empty lines between."""
    text = "# who we are\n! really\n\nsecurity.protocol=SSL\r\n"
    text += "  sasl.mechanism : PLAIN\nempty\nclient.id\tcli one \n"
    assert parse_properties(text) == {
        "security.protocol": "SSL",
        "sasl.mechanism": "PLAIN",
        "empty": "",
        "client.id": "cli one ",
    }


def test_a_value_may_go_on_in_the_next_line_and_hold_anything() -> None:
    """S1: a JAAS line is long, and a password may have an equals sign, a hash or a backslash in it."""
    text = 'sasl.jaas.config=x.PlainLoginModule required \\\n    username="bob" \\\n'
    text += '    password="a=b#c\\\\d";\nlast=\\'
    assert parse_properties(text) == {
        "sasl.jaas.config": 'x.PlainLoginModule required username="bob" password="a=b#c\\d";',
        "last": "",
    }


def test_escapes_mean_what_they_mean_in_java() -> None:
    """S1: by letter, by number, and for what would part name and value."""
    assert parse_properties(r"a\ b\:c=\u00e9\t\n\z") == {"a b:c": "é\t\nz"}
