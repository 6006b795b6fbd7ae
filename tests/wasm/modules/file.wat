;; "r4name" prints the file `name` below directory 4, "w4name" writes it, "l4name" makes it a link to
;; what follows a "|"; it exits with the number that WASI answers, 0 where it was done.
(module
  (import "wasi_snapshot_preview1" "args_sizes_get" (func $args_sizes (param i32 i32) (result i32)))
  (import "wasi_snapshot_preview1" "args_get" (func $args (param i32 i32) (result i32)))
  (import "wasi_snapshot_preview1" "path_open"
    (func $open (param i32 i32 i32 i32 i32 i64 i64 i32 i32) (result i32)))
  (import "wasi_snapshot_preview1" "path_symlink"
    (func $symlink (param i32 i32 i32 i32 i32) (result i32)))
  (import "wasi_snapshot_preview1" "fd_read" (func $read (param i32 i32 i32 i32) (result i32)))
  (import "wasi_snapshot_preview1" "fd_write" (func $write (param i32 i32 i32 i32) (result i32)))
  (import "wasi_snapshot_preview1" "proc_exit" (func $exit (param i32)))
  (memory (export "memory") 4)
  (data (i32.const 512) "written by a module\n")
  (func $length (param $text i32) (param $end i32) (result i32)
    (local $count i32)
    (block $done
      (loop $more
        (br_if $done
          (i32.eq (i32.load8_u (i32.add (local.get $text) (local.get $count))) (local.get $end)))
        (local.set $count (i32.add (local.get $count) (i32.const 1)))
        (br $more)))
    (local.get $count))
  (func $require (param $answer i32)
    (if (local.get $answer) (then (call $exit (local.get $answer)))))
  (func (export "_start")
    (local $verb i32) (local $directory i32) (local $name i32) (local $file i32) (local $size i32)
    (drop (call $args_sizes (i32.const 0) (i32.const 4)))
    (drop (call $args (i32.const 1024) (i32.const 65536)))
    (local.set $name (i32.load (i32.const 1028)))
    (local.set $verb (i32.load8_u (local.get $name)))
    (local.set $directory
      (i32.sub (i32.load8_u (i32.add (local.get $name) (i32.const 1))) (i32.const 48)))
    (local.set $name (i32.add (local.get $name) (i32.const 2)))
    (if (i32.eq (local.get $verb) (i32.const 108))
      (then
        (local.set $size (call $length (local.get $name) (i32.const 124)))
        (local.set $file (i32.add (i32.add (local.get $name) (local.get $size)) (i32.const 1)))
        (call $exit
          (call $symlink
            (local.get $file) (call $length (local.get $file) (i32.const 0))
            (local.get $directory) (local.get $name) (local.get $size)))))
    (call $require
      (call $open
        (local.get $directory) (i32.const 1)
        (local.get $name) (call $length (local.get $name) (i32.const 0))
        (if (result i32) (i32.eq (local.get $verb) (i32.const 119))
          (then (i32.const 9)) (else (i32.const 0)))
        (if (result i64) (i32.eq (local.get $verb) (i32.const 119))
          (then (i64.const 64)) (else (i64.const 2)))
        (i64.const 0) (i32.const 0) (i32.const 16)))
    (local.set $file (i32.load (i32.const 16)))
    (if (i32.eq (local.get $verb) (i32.const 119))
      (then
        (i32.store (i32.const 0) (i32.const 512))
        (i32.store (i32.const 4) (i32.const 20))
        (call $exit (call $write (local.get $file) (i32.const 0) (i32.const 1) (i32.const 20)))))
    (i32.store (i32.const 0) (i32.const 131072))
    (i32.store (i32.const 4) (i32.const 65536))
    (call $require (call $read (local.get $file) (i32.const 0) (i32.const 1) (i32.const 20)))
    (i32.store (i32.const 4) (i32.load (i32.const 20)))
    (call $exit (call $write (i32.const 1) (i32.const 0) (i32.const 1) (i32.const 24)))))
