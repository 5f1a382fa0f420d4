// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package controller

import "sync"

// urgentInARow is how many urgent keys are synced before a key that is not urgent is, if both wait:
// a user who changes objects all the time does not stop all other work.
const urgentInARow = 3

// urgency has the keys that are urgent when they are synced next, of all parts of a queue.
type urgency[Key comparable] struct {
	mu   sync.Mutex
	keys map[Key]struct{}
}

func (u *urgency[Key]) set(key Key) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.keys == nil {
		u.keys = make(map[Key]struct{})
	}
	u.keys[key] = struct{}{}
}

func (u *urgency[Key]) has(key Key) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	_, urgent := u.keys[key]
	return urgent
}

// take reports whether key is urgent, which it is no longer then.
func (u *urgency[Key]) take(key Key) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	_, urgent := u.keys[key]
	delete(u.keys, key)
	return urgent
}

// classes holds the waiting keys of one part of a queue in two classes, each first in, first out. It
// implements workqueue.Queue, whose functions are never called concurrently.
type classes[Key comparable] struct {
	urgent *urgency[Key]
	// first are the urgent keys, and rest the others. A key that became urgent while it waited is in
	// both. waiting has each waiting key once, and whether it is among the first.
	first, rest fifo[Key]
	waiting     map[Key]bool
	// row is the number of urgent keys since the last key that was not urgent.
	row int
}

// Push implements workqueue.Queue.
func (c *classes[Key]) Push(key Key) {
	if c.waiting == nil {
		c.waiting = make(map[Key]bool)
	}
	urgent := c.urgent.has(key)
	c.waiting[key] = urgent
	if urgent {
		c.first.push(key)
	} else {
		c.rest.push(key)
	}
}

// Touch implements workqueue.Queue. It is called for a waiting key that is added again.
func (c *classes[Key]) Touch(key Key) {
	if urgent, found := c.waiting[key]; found && !urgent && c.urgent.has(key) {
		c.waiting[key] = true
		c.first.push(key)
	}
}

// Len implements workqueue.Queue.
func (c *classes[Key]) Len() int { return len(c.waiting) }

// Pop implements workqueue.Queue. It is only called if a key waits.
func (c *classes[Key]) Pop() Key {
	c.rest.drop(func(key Key) bool {
		urgent, found := c.waiting[key]
		return !found || urgent
	})
	var key Key
	if c.first.len() > 0 && (c.row < urgentInARow || c.rest.len() == 0) {
		key = c.first.pop()
		c.row++
	} else {
		key = c.rest.pop()
		c.row = 0
	}
	delete(c.waiting, key)
	return key
}

// fifo is a queue of keys.
type fifo[Key comparable] struct{ keys []Key }

func (f *fifo[Key]) len() int { return len(f.keys) }

func (f *fifo[Key]) push(key Key) { f.keys = append(f.keys, key) }

func (f *fifo[Key]) pop() (key Key) {
	key, f.keys[0] = f.keys[0], key
	f.keys = f.keys[1:]
	return key
}

// drop drops keys from the front.
func (f *fifo[Key]) drop(unwanted func(Key) bool) {
	for len(f.keys) > 0 && unwanted(f.keys[0]) {
		f.pop()
	}
}
