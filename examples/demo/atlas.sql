-- What atlas.db is made of: `python -m examples.demo.make_db`
CREATE TABLE countries (name TEXT PRIMARY KEY, capital TEXT NOT NULL, continent TEXT NOT NULL) WITHOUT ROWID;
INSERT INTO countries VALUES
  ('France', 'Paris', 'Europe'),
  ('Italy', 'Rome', 'Europe'),
  ('Japan', 'Tokyo', 'Asia'),
  ('Norway', 'Oslo', 'Europe');
