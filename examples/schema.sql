-- What the examples work with: a table of the producers, and two of the consumers.
CREATE TABLE orders (
    id    integer PRIMARY KEY,
    total numeric NOT NULL CHECK (total > 0)
);

-- Counting twice would show.
CREATE TABLE revenue (
    consumer text    PRIMARY KEY,
    orders   bigint  NOT NULL DEFAULT 0,
    total    numeric NOT NULL DEFAULT 0
);
