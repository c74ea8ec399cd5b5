"""Forwarding: a client that reaches one broker only is served as if that broker led everything (N5).

On a listener of its own (`forward.listen`) a broker names itself as the only one, and as leader and
coordinator of everything. What another broker leads is asked there, over connections that belong to the one
client, and the answers are joined. So a client's order, its limits and what ends with its connection are
those of the connection it knows.

    routes     which verb is answered by whom: a table
    parts      a request cut into one for each broker, the answers joined; a refusal where one is missing
    lanes      a client's connections to the other brokers
    fetching   Fetch from several leaders: the first that has something answers for all
    sharing    share sessions with several leaders, one for the client
    front      what clients are shown of the cluster: this broker alone
    session    the layer itself, before the handlers
"""
