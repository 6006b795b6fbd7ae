;; Calls itself until there is no stack.
(module (memory (export "memory") 1) (func $deeper (export "_start") (call $deeper)))
