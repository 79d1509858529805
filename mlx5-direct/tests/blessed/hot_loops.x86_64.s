# The loops of examples/probe.rs that fill a run of slots, rustc 1.95.0, release. BLESS=1 cargo test rewrites this file.

post_batch:
    mov 0x8(%rsp),%r10
    cmp 0x10(%rsp),%r10
    je out
    lea 0x18(%r10),%r11
    mov %r11,0x8(%rsp)
    mov (%r10),%r11
    bswap %r11
    mov 0x10(%r10),%r15
    mov 0x8(%r10),%r10d
    bswap %r10d
    or %r12,%r10
    mov %r10,-0x18(%r9)
    mov %r11,-0x10(%r9)
    mov %r13,-0x8(%r9)
    movq $0x0,(%r9)
    mov %r15,(%rdi,%rsi,8)
    inc %rsi
    add %rdx,%r9
    add $0xfffffffffffffff8,%r8
    jne loop

post_batch:
    mov 0x8(%rsp),%r10
    cmp 0x10(%rsp),%r10
    je out
    lea 0x18(%r10),%r11
    mov %r11,0x8(%rsp)
    mov 0x10(%r10),%r11
    mov (%r10),%r15
    bswap %r15
    mov 0x8(%r10),%r10d
    bswap %r10d
    or %r12,%r10
    mov %r10,-0x8(%r9)
    mov %r15,(%r9)
    mov %r11,(%rdi,%rsi,8)
    inc %rsi
    add %rdx,%r9
    add $0xfffffffffffffff8,%r8
    jne loop

post_batch_address:
    mov (%rsp),%r10
    cmp 0x8(%rsp),%r10
    je out
    lea 0x10(%r10),%r11
    mov %r11,(%rsp)
    mov (%r10),%r11
    mov 0x8(%r10),%r10
    bswap %r11
    mov %r11,(%r8)
    mov %r10,(%rsi,%r9,8)
    inc %r9
    add %rax,%r8
    add $0xfffffffffffffff8,%rdi
    jne loop

post_slice:
    mov -0x18(%r13),%rbp
    movups -0x28(%r13),%xmm0
    movups %xmm0,0x10(%rdi,%r8,1)
    mov %rbp,-0x8(%r15,%r11,8)
    mov 0x0(%r13),%rbp
    movups -0x10(%r13),%xmm0
    movups %xmm0,0x10(%rdi,%r12,1)
    mov %rbp,(%r15,%r11,8)
    add $0x2,%r11
    add %r9,%rdi
    add $0x30,%r13
    cmp %r11,%rbx
    jne loop

post_slice:
    mov -0x18(%r13),%rbp
    movups -0x28(%r13),%xmm0
    movups %xmm0,0x10(%rdi,%r8,1)
    mov %rdx,0x20(%rdi,%r8,1)
    movq $0x0,0x28(%rdi,%r8,1)
    mov %rbp,-0x8(%r15,%r11,8)
    mov 0x0(%r13),%rbp
    movups -0x10(%r13),%xmm0
    movups %xmm0,0x10(%rdi,%r12,1)
    mov %rdx,0x20(%rdi,%r12,1)
    movq $0x0,0x28(%rdi,%r12,1)
    mov %rbp,(%r15,%r11,8)
    add $0x2,%r11
    add %r9,%rdi
    add $0x30,%r13
    cmp %r11,%rbx
    jne loop

post_slice_address:
    mov -0x18(%rbp),%r8
    mov -0x10(%rbp),%r9
    bswap %r8
    mov %r8,0x18(%rdi,%r10,1)
    mov %r9,-0x8(%r13,%rbx,8)
    mov -0x8(%rbp),%r8
    mov 0x0(%rbp),%r9
    bswap %r8
    mov %r8,0x18(%rdi,%r12,1)
    mov %r9,0x0(%r13,%rbx,8)
    add $0x2,%rbx
    add %r11,%rdi
    add $0x20,%rbp
    cmp %rbx,%r15
    jne loop
