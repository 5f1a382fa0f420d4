// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package qemu

import (
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"nstance.dev/operator/pkg/server/provider"
	"nstance.dev/operator/pkg/server/provider/cloud"
	"nstance.dev/operator/pkg/server/puidv7"
)

// Files in the folder of a VM. QEMU runs in the folder and gets their names.
const (
	// lockFile is locked by the process that works on the folder, and by QEMU while it runs.
	lockFile     = "lock"
	identityFile = "identity.json"
	// launchedFile is written when QEMU has responded for the first time, and deletionFile when
	// the deletion was requested.
	launchedFile = "launched.json"
	deletionFile = "deletion.json"
	diskFile     = "disk.qcow2"
	seedFile     = "seed.iso"
	smbiosFile   = "smbios"
	socketFile   = "qmp"
	serialFile   = "serial.log"
	logFile      = "qemu.log"
)

// deletedSuffix is added to the name of a folder before its files are deleted, so that a
// partly deleted folder is not mistaken for a VM.
const deletedSuffix = ".deleted"

// maxSerialLog is the size in bytes at which the serial log is emptied, so that a guest
// cannot fill the disk of the host.
const maxSerialLog = 16 << 20

// folder is the folder of one VM.
type folder struct {
	id   string
	path string
}

// folders is the parent folder of the VMs of one shard.
type folders struct {
	root, path string
}

func newFolders(root, cluster, shard string) folders {
	return folders{root: root, path: filepath.Join(root, cluster, shard)}
}

// of returns the folder of an instance, whether or not it exists.
func (f folders) of(id string) folder {
	return folder{id: id, path: filepath.Join(f.path, id)}
}

// check returns an error if the whole file system is missing. Then nothing is known about the
// VMs, and creating a folder would hide this.
func (f folders) check() error {
	_, err := os.Stat(f.root)
	return err
}

// list returns the existing folders. It also removes the rest of deleted folders.
func (f folders) list() ([]folder, error) {
	if err := f.check(); err != nil {
		return nil, err
	}
	entries, err := os.ReadDir(f.path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var list []folder
	for _, entry := range entries {
		name := entry.Name()
		if strings.HasSuffix(name, deletedSuffix) {
			if err := os.RemoveAll(filepath.Join(f.path, name)); err != nil {
				return nil, err
			}
			continue
		}
		if _, err := puidv7.Parse(name); err == nil {
			list = append(list, f.of(name))
		}
	}
	return list, nil
}

// file returns the path of a file in the folder.
func (f folder) file(name string) string { return filepath.Join(f.path, name) }

// create creates the folder if it does not exist. Another process may remove it before create
// returns.
func (f folder) create() error {
	if err := os.MkdirAll(filepath.Dir(f.path), 0o700); err != nil {
		return err
	}
	if err := os.Mkdir(f.path, 0o700); !errors.Is(err, fs.ErrExist) {
		return err
	}
	return nil
}

// errLocked means that another process works on the folder, or that QEMU runs.
var errLocked = errors.New("the folder is locked")

// lock locks the folder until the returned file is closed, here and in all processes that
// have inherited it (https://man7.org/linux/man-pages/man2/flock.2.html). Use syscall.LOCK_EX
// to change the folder, and syscall.LOCK_SH to keep other processes from changing it. Unlike
// a process id, a lock cannot belong to an unrelated process.
func (f folder) lock(how int) (*os.File, error) {
	for {
		file, err := os.OpenFile(f.file(lockFile), os.O_RDWR|os.O_CREATE, 0o600)
		if err != nil {
			return nil, err
		}
		if err := flock(file, how); err != nil {
			file.Close()
			return nil, err
		}
		// The folder may have been deleted after the file was opened.
		locked, err := file.Stat()
		if err == nil {
			var current os.FileInfo
			if current, err = os.Stat(f.file(lockFile)); err == nil && os.SameFile(locked, current) {
				return file, nil
			}
		}
		file.Close()
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
	}
}

func flock(file *os.File, how int) error {
	for {
		switch err := syscall.Flock(int(file.Fd()), how|syscall.LOCK_NB); {
		case errors.Is(err, syscall.EINTR):
		case errors.Is(err, syscall.EWOULDBLOCK):
			return errLocked
		case err != nil:
			return fmt.Errorf("lock %s: %w", file.Name(), err)
		default:
			return nil
		}
	}
}

// write writes a file atomically. Only the owner can read it.
func (f folder) write(name string, data []byte) error {
	path := f.file(name)
	temporary, err := os.CreateTemp(f.path, name+".*")
	if err != nil {
		return err
	}
	defer os.Remove(temporary.Name())
	_, err = temporary.Write(data)
	if err == nil {
		err = temporary.Sync()
	}
	if err = errors.Join(err, temporary.Close()); err != nil {
		return err
	}
	return os.Rename(temporary.Name(), path)
}

// writeJSON writes a value as JSON.
func (f folder) writeJSON(name string, value any) error {
	data, err := json.MarshalIndent(value, "", "\t")
	if err != nil {
		return err
	}
	return f.write(name, append(data, '\n'))
}

// readJSON returns false if the file does not exist.
func (f folder) readJSON(name string, value any) (bool, error) {
	data, err := os.ReadFile(f.file(name))
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	if err := json.Unmarshal(data, value); err != nil {
		return false, fmt.Errorf("read %s: %w", f.file(name), err)
	}
	return true, nil
}

// clean removes the files of an unfinished launch. The folder must be locked.
func (f folder) clean() error {
	entries, err := os.ReadDir(f.path)
	if err != nil {
		return err
	}
	for _, entry := range entries {
		if entry.Name() == lockFile {
			continue
		}
		if err := os.RemoveAll(f.file(entry.Name())); err != nil {
			return err
		}
	}
	return nil
}

// remove deletes the folder. It must be locked.
func (f folder) remove() error {
	// The files of an earlier folder of this name may still be being deleted.
	deleted := f.path + "." + rand.Text() + deletedSuffix
	if err := os.Rename(f.path, deleted); err != nil {
		return err
	}
	for {
		err := os.RemoveAll(deleted)
		if !errors.Is(err, syscall.ENOTEMPTY) {
			return err
		}
		// Another process, which has opened the folder before it had this name, has created
		// its lock in it. No process opens it now.
	}
}

// trimSerialLog empties a serial log that is too large. QEMU continues to append to it.
func (f folder) trimSerialLog() error {
	info, err := os.Stat(f.file(serialFile))
	if err != nil {
		return ignoreNotExist(err)
	}
	if info.Size() <= maxSerialLog {
		return nil
	}
	return os.Truncate(f.file(serialFile), 0)
}

// managedBy marks the VMs of this project.
const managedBy = "nstance"

// identity is the content of the file identityFile. It is written before QEMU starts.
type identity struct {
	cloud.Identity
	ProviderID string    `json:"provider_id"`
	Resources  resources `json:"resources"`
}

// resources are the resources of its subnet that a VM uses.
type resources struct {
	Type   string `json:"type"`
	Subnet string `json:"subnet"`
	// Memory is in bytes.
	Memory int64 `json:"memory"`
}

// newIdentity returns the identity of the VM of a spec.
func newIdentity(shard provider.Shard, spec provider.Spec) identity {
	i := identity{
		Identity:   cloud.NewIdentity(shard, spec),
		ProviderID: fmt.Sprintf("%s:///%s/%s", Name, shard.Zone, spec.ID),
		Resources:  resources{Type: spec.Type.Name, Subnet: spec.Subnet, Memory: spec.Type.Memory.Value()},
	}
	i.Association.ManagedBy = managedBy
	return i
}

// vm returns the VM without its state.
func (i identity) vm() cloud.VM {
	vm := i.VM()
	vm.ProviderID, vm.Type = i.ProviderID, i.Resources.Type
	return vm
}

// readIdentity returns false if the folder has no identity. The identity of another VM is an
// error: the folder was copied.
func (f folder) readIdentity(shard provider.Shard) (i identity, found bool, err error) {
	if found, err = f.readJSON(identityFile, &i); err != nil || !found {
		return identity{}, false, err
	}
	want := cloud.AssociationOf(shard)
	want.ManagedBy = managedBy
	if i.InstanceID != f.id || i.Association != want {
		return identity{}, false, fmt.Errorf("%s is of instance %s of shard %s of cluster %s",
			f.file(identityFile), i.InstanceID, i.Association.Shard, i.Association.ClusterID)
	}
	return i, true, nil
}

// launch is the content of the file launchedFile.
type launch struct {
	// BootID is the boot id of the host.
	BootID string `json:"boot_id"`
}

// deletion is the content of the file deletionFile.
type deletion struct {
	RequestedAt time.Time `json:"requested_at"`
}
