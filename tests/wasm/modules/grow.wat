;; Takes memory, a MiB at a time, and writes to all of it; exits with 7 where it gets no more.
(module
  (import "wasi_snapshot_preview1" "proc_exit" (func $exit (param i32)))
  (memory (export "memory") 1)
  (func (export "_start")
    (local $pages i32)
    (loop $more
      (local.set $pages (memory.grow (i32.const 16)))
      (if (i32.eq (local.get $pages) (i32.const -1)) (then (call $exit (i32.const 7))))
      (memory.fill
        (i32.mul (local.get $pages) (i32.const 65536)) (i32.const 1) (i32.const 1048576))
      (br $more))))
