// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Package nocloud makes disks from which the source NoCloud of cloud-init reads the
// userdata of a virtual machine.
package nocloud

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// label is that of the file systems that cloud-init looks for.
const label = "cidata"

// New returns a disk for an instance. The id is also the name of its host.
func New(id string, userdata []byte) ([]byte, error) {
	metadata, err := json.Marshal(map[string]string{"instance-id": id, "local-hostname": id})
	if err != nil {
		return nil, err
	}
	return newISO9660(label, map[string][]byte{"meta-data": metadata, "user-data": userdata})
}

const (
	sectorSize = 2048
	// The first sixteen sectors are for boot loaders. The descriptors follow.
	volumeSector = 15 + iota
	terminatorSector
	littlePathSector
	bigPathSector
	rootSector
	firstFileSector
)

// pathTableSize is that of a path table with the root only.
const pathTableSize = 10

// newISO9660 returns a file system with a label and files by name. Linux shows names in lower
// case.
func newISO9660(label string, files map[string][]byte) ([]byte, error) {
	if len(label) > 32 {
		return nil, fmt.Errorf("label %q is longer than 32 characters", label)
	}
	root := append(record("\x00", rootSector, sectorSize, true), record("\x01", rootSector, sectorSize, true)...)
	var content bytes.Buffer
	for _, name := range slices.Sorted(maps.Keys(files)) {
		if name == "" || len(name) > 28 || strings.ContainsAny(name, "/;") {
			return nil, fmt.Errorf("%q cannot be the name of a file", name)
		}
		sector := firstFileSector + content.Len()/sectorSize
		root = append(root, record(strings.ToUpper(name)+".;1", sector, len(files[name]), false)...)
		content.Write(files[name])
		content.Write(make([]byte, -content.Len()&(sectorSize-1)))
	}
	if len(root) > sectorSize {
		return nil, fmt.Errorf("%d files are too many", len(files))
	}
	image := make([]byte, firstFileSector*sectorSize, firstFileSector*sectorSize+content.Len())
	sectors := firstFileSector + content.Len()/sectorSize
	copy(image[volumeSector*sectorSize:], volume(label, sectors))
	copy(image[terminatorSector*sectorSize:], "\xffCD001\x01")
	copy(image[littlePathSector*sectorSize:], pathTable(binary.LittleEndian))
	copy(image[bigPathSector*sectorSize:], pathTable(binary.BigEndian))
	copy(image[rootSector*sectorSize:], root)
	return append(image, content.Bytes()...), nil
}

// volume returns the primary volume descriptor.
func volume(label string, sectors int) []byte {
	v := make([]byte, sectorSize)
	copy(v, "\x01CD001\x01")
	text := func(at, length int, value string) {
		copy(v[at:at+length], value+strings.Repeat(" ", length-len(value)))
	}
	text(8, 32, "")
	text(40, 32, label)
	copy(v[80:], both32(sectors))
	copy(v[120:], both16(1)) // volumes of the set
	copy(v[124:], both16(1)) // number of this volume
	copy(v[128:], both16(sectorSize))
	copy(v[132:], both32(pathTableSize))
	binary.LittleEndian.PutUint32(v[140:], littlePathSector)
	binary.BigEndian.PutUint32(v[148:], bigPathSector)
	copy(v[156:], record("\x00", rootSector, sectorSize, true))
	text(190, 4*128+3*37, "") // names of people and of files about the volume
	for at := 813; at < 881; at += 17 {
		copy(v[at:], strings.Repeat("0", 16)) // no date
	}
	v[881] = 1 // version of the format
	return v
}

// record returns the entry of a folder for a file or a folder.
func record(name string, sector, size int, folder bool) []byte {
	r := make([]byte, 33, 33+len(name)+1)
	copy(r[2:], both32(sector))
	copy(r[10:], both32(size))
	copy(r[18:], []byte{70, 1, 1}) // 1970-01-01
	if folder {
		r[25] = 2
	}
	copy(r[28:], both16(1))
	r[32] = byte(len(name))
	r = append(r, name...)
	if len(r)%2 == 1 {
		r = append(r, 0)
	}
	r[0] = byte(len(r))
	return r
}

// pathTable returns the list of folders, which has the root only.
func pathTable(order binary.AppendByteOrder) []byte {
	table := []byte{1, 0}
	table = order.AppendUint32(table, rootSector)
	return append(order.AppendUint16(table, 1), 0, 0)
}

// both16 and both32 return a number in both byte orders.
func both16(n int) []byte {
	return binary.BigEndian.AppendUint16(binary.LittleEndian.AppendUint16(nil, uint16(n)), uint16(n))
}

func both32(n int) []byte {
	return binary.BigEndian.AppendUint32(binary.LittleEndian.AppendUint32(nil, uint32(n)), uint32(n))
}
