;; Does what no program may.
(module (memory (export "memory") 1) (func (export "_start") unreachable))
