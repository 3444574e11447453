-- The tables of container/compose.yaml, and the user that Floodmark reads them with.
CREATE DATABASE shop;
USE shop;
CREATE TABLE customers (
  id INT PRIMARY KEY AUTO_INCREMENT,
  name VARCHAR(100) NOT NULL,
  updated_at TIMESTAMP(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6) ON UPDATE CURRENT_TIMESTAMP(6),
  KEY (updated_at)
);
CREATE TABLE orders (
  id BIGINT PRIMARY KEY AUTO_INCREMENT,
  customer INT NOT NULL,
  total DECIMAL(12, 2) NOT NULL,
  updated_at TIMESTAMP(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6) ON UPDATE CURRENT_TIMESTAMP(6),
  KEY (updated_at)
);
INSERT INTO customers (name) VALUES ('Ada'), ('Grace'), ('Edgar'), ('Barbara');
INSERT INTO orders (customer, total)
  SELECT c.id, 10 * c.id + d.id FROM customers AS c, customers AS d, customers AS e, customers AS f;
CREATE USER reader IDENTIFIED BY 'reader-secret';
GRANT SELECT ON shop.* TO reader;
GRANT PROCESS ON *.* TO reader;
GRANT SELECT ON performance_schema.* TO reader;
