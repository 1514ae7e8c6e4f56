package epoch

import (
	"context"
	"sync"
)

// mailbox is an unbounded queue: add never blocks.
type mailbox[T any] struct {
	filled chan struct{} // signals that items were added; has room for one signal

	mu     sync.Mutex
	items  []T
	closed bool
}

func newMailbox[T any]() *mailbox[T] { return &mailbox[T]{filled: make(chan struct{}, 1)} }

// add appends an item.
func (m *mailbox[T]) add(item T) {
	m.mu.Lock()
	m.items = append(m.items, item)
	m.mu.Unlock()
	m.notify()
}

// close makes the reader end once the mailbox is empty.
func (m *mailbox[T]) close() {
	m.mu.Lock()
	m.closed = true
	m.mu.Unlock()
	m.notify()
}

func (m *mailbox[T]) notify() {
	select {
	case m.filled <- struct{}{}:
	default: // the channel still has a signal, after which the reader takes all items
	}
}

// take removes and returns all items.
func (m *mailbox[T]) take() []T {
	m.mu.Lock()
	defer m.mu.Unlock()
	items := m.items
	m.items = nil
	return items
}

// worker is a mailbox of functions that one goroutine runs in order.
type worker struct {
	*mailbox[func(context.Context)]
}

func newWorker() worker { return worker{newMailbox[func(context.Context)]()} }

// run calls the queued functions in order until close. When ctx ends, remaining functions are
// dropped.
func (w worker) run(ctx context.Context) {
	for {
		for _, f := range w.take() {
			if ctx.Err() == nil {
				f(ctx)
			}
		}
		w.mu.Lock()
		done := w.closed && len(w.items) == 0
		w.mu.Unlock()
		if done {
			return
		}
		<-w.filled
	}
}
