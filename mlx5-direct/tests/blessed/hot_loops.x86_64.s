# The loops of examples/probe.rs that fill a run of slots, rustc 1.95.0, release. BLESS=1 cargo test rewrites this file.

post_batch:
    cmp %r12,%rsi
    je out
    lea 0x18(%rsi),%r14
    mov 0x10(%rsi),%rdi
    mov (%rsi),%r15
    bswap %r15
    mov 0x8(%rsi),%esi
    bswap %esi
    movabs $0x7700000000000000,%rbp
    or %rbp,%rsi
    mov %rsi,-0x18(%rdx)
    mov %r15,-0x10(%rdx)
    movabs $0x1000000000000,%rsi
    mov %rsi,-0x8(%rdx)
    movq $0x0,(%rdx)
    mov %rdi,(%r9,%rbx,8)
    inc %rbx
    add %r13,%rdx
    mov %r14,%rsi
    add $0xfffffffffffffff8,%r11
    jne loop

post_batch:
    cmp %r12,%rsi
    je out
    lea 0x18(%rsi),%r14
    mov 0x10(%rsi),%rdi
    mov (%rsi),%r15
    bswap %r15
    mov 0x8(%rsi),%esi
    bswap %esi
    movabs $0x7700000000000000,%rbp
    or %rbp,%rsi
    mov %rsi,-0x8(%rdx)
    mov %r15,(%rdx)
    mov %rdi,(%r9,%rbx,8)
    inc %rbx
    add %r13,%rdx
    mov %r14,%rsi
    add $0xfffffffffffffff8,%r11
    jne loop

post_batch_address:
    cmp %rdx,%rsi
    je out
    lea 0x10(%rsi),%r15
    mov (%rsi),%r12
    mov 0x8(%rsi),%rsi
    bswap %r12
    mov %r12,(%r11)
    mov %rsi,(%r10,%r14,8)
    inc %r14
    add %r8,%r11
    mov %r15,%rsi
    add $0xfffffffffffffff8,%rbx
    jne loop

post_slice:
    mov -0x18(%rbp),%rsi
    movups -0x28(%rbp),%xmm0
    movups %xmm0,0x10(%r10,%r11,1)
    mov %rsi,-0x8(%r13,%rax,8)
    mov 0x0(%rbp),%rsi
    movups -0x10(%rbp),%xmm0
    movups %xmm0,0x10(%r10,%r15,1)
    mov %rsi,0x0(%r13,%rax,8)
    add $0x2,%rax
    add %r14,%r10
    add $0x30,%rbp
    cmp %rax,%rbx
    jne loop

post_slice:
    mov -0x18(%rbp),%rsi
    movups -0x28(%rbp),%xmm0
    movups %xmm0,0x10(%r10,%r11,1)
    mov %r9,0x20(%r10,%r11,1)
    movq $0x0,0x28(%r10,%r11,1)
    mov %rsi,-0x8(%r13,%rax,8)
    mov 0x0(%rbp),%rsi
    movups -0x10(%rbp),%xmm0
    movups %xmm0,0x10(%r10,%r15,1)
    mov %r9,0x20(%r10,%r15,1)
    movq $0x0,0x28(%r10,%r15,1)
    mov %rsi,0x0(%r13,%rax,8)
    add $0x2,%rax
    add %r14,%r10
    add $0x30,%rbp
    cmp %rax,%rbx
    jne loop

post_slice_address:
    mov -0x18(%r10),%rsi
    mov -0x10(%r10),%rdx
    bswap %rsi
    mov %rsi,0x18(%rax,%rbx,1)
    mov %rdx,-0x8(%rbp,%r12,8)
    mov -0x8(%r10),%rdx
    mov (%r10),%rsi
    bswap %rdx
    mov %rdx,0x18(%rax,%r13,1)
    mov %rsi,0x0(%rbp,%r12,8)
    add $0x2,%r12
    add %r14,%rax
    add $0x20,%r10
    cmp %r12,%r11
    jne loop
