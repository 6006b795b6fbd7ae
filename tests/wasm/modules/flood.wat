;; Prints 64 MiB.
(module
  (import "wasi_snapshot_preview1" "fd_write" (func $write (param i32 i32 i32 i32) (result i32)))
  (memory (export "memory") 17)
  (func (export "_start")
    (local $left i32)
    (memory.fill (i32.const 65536) (i32.const 120) (i32.const 1048576))
    (local.set $left (i32.const 67108864))
    (loop $more
      (i32.store (i32.const 0) (i32.const 65536))
      (i32.store (i32.const 4) (i32.const 1048576))
      (drop (call $write (i32.const 1) (i32.const 0) (i32.const 1) (i32.const 8)))
      (local.set $left (i32.sub (local.get $left) (i32.load (i32.const 8))))
      (br_if $more (i32.gt_s (local.get $left) (i32.const 0))))))
